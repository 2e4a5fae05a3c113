RIGHT = {"return plan": "yield from plan"}
WRONG = {
    # Assumes that a waiting request has no computed tokens.
    "wrong-result": {
        "request.num_tokens - request.num_computed_tokens, budget)\n        plan": "request.num_tokens, budget)\n        plan"
    },
    "changes-its-input": [
        {"in waiting:": "in list(waiting):", "room -= 1": "room -= 1\n        waiting.remove(request)"},
        {"return plan": "for request, n in plan:\n        request.num_computed_tokens += n\n    return plan"},
    ],
}
