def right_now_in_one(request, budget, threshold, alone, chunked):
    limit = threshold if threshold and not alone else request.num_tokens
    n = min(request.num_tokens - request.num_computed_tokens, limit)
    return min(n, budget) * (chunked or n <= budget)


def right_admit_by_index(waiting, budget, threshold, alone, chunked):
    plan, i = [], 0
    while i < len(waiting) and (n := right_now_in_one(waiting[i], budget, threshold, alone, chunked)) > 0:
        plan, budget, i = [*plan, (waiting[i], n)], budget - n, i + 1
    return plan


RIGHT = [(right_now_in_one, right_admit_by_index)]
WRONG = {
    "wrong-result": [
        {"if threshold and not alone:": "if threshold > 1 and not alone:"},
        {"if n == 0:": "if n == 0 or n == budget:"},  # never uses the budget up
    ],
    "changes-its-input": {
        "in waiting:": "in list(waiting):",
        "budget -= n": "budget -= n\n        waiting.remove(request)",
    },
}
