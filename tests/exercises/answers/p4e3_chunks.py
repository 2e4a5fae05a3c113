ENDS = "if n > budget and not chunked:\n        return 0\n    return min(n, budget)"
RIGHT = {ENDS: "return min(n, budget) * (chunked or n <= budget)", "return plan": "yield from plan"}
WRONG = {
    "wrong-result": [
        {"if threshold and not alone:": "if threshold > 1 and not alone:"},
        {"if n == 0:": "if n == 0 or n == budget:"},  # never uses the budget up
        {"alone, chunked)\n        if": "len(waiting) == 1, chunked)\n        if"},
    ],
    "changes-its-input": {
        "in waiting:": "in list(waiting):",
        "budget -= n": "budget -= n\n        waiting.remove(request)",
    },
}
