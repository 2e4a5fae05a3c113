def _lag(request):
    return request.num_tokens - request.num_computed_tokens


def right_one_by_one(running, waiting, budget, max_num_seqs):
    for request in (running + waiting)[:max_num_seqs]:
        n = min(_lag(request), budget)
        if n:
            yield request, n
        budget -= n


RIGHT = [right_one_by_one]
WRONG = {
    # Takes it that nothing of a waiting request is computed.
    "wrong-result": {
        "request.num_tokens - request.num_computed_tokens, budget)\n        plan": "request.num_tokens, budget)\n        plan"
    },
    "changes-its-input": [
        {"in waiting:": "in list(waiting):", "seats -= 1": "seats -= 1\n        waiting.remove(request)"},
        {"return plan": "for request, n in plan:\n        request.num_computed_tokens += n\n    return plan"},
    ],
}
