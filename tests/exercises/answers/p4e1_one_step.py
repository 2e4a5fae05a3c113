RIGHT = [{"return plan": "yield from plan"}]
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
