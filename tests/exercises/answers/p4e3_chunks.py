"""Answers to exercise 4.3."""


def right_now_in_one(request, budget, threshold, alone, chunked):
    limit = threshold if threshold and not alone else request.num_tokens
    n = min(request.num_tokens - request.num_computed_tokens, limit)
    return min(n, budget) * (chunked or n <= budget)


def right_admit_by_index(waiting, budget, threshold, alone, chunked):
    plan, i = [], 0
    while i < len(waiting) and (n := right_now_in_one(waiting[i], budget, threshold, alone, chunked)) > 0:
        plan, budget, i = [*plan, (waiting[i], n)], budget - n, i + 1
    return plan


THRESHOLD = "if threshold and not alone:"
TOO_MUCH = "if n > budget and not chunked:"
RIGHT = [(right_now_in_one, right_admit_by_index)]
WRONG = {
    "wrong-result": [
        {THRESHOLD: "if threshold > 1 and not alone:"},
        {"if n == 0:": "if n == 0 or n == budget:"},  # never uses the budget up
    ],
    "begins-anew": {" - request.num_computed_tokens": ""},
    "threshold-for-one-alone": {THRESHOLD: "if threshold:"},
    "threshold-of-nothing": {THRESHOLD: "if not alone:"},
    "cuts-anyway": {TOO_MUCH: "if False:"},
    "over-the-budget": {"return min(n, budget)": "return n"},
    "threshold-only-with-chunks": {THRESHOLD: "if threshold and chunked and not alone:"},
    "waits-before-the-threshold": {f"    {THRESHOLD}": f"    {TOO_MUCH}\n        return 0\n    {THRESHOLD}"},
    "jumps-the-queue": {"break": "continue"},
    "budget-per-request": {"        budget -= n\n": ""},
    "parts-of-nothing": {"break": "pass"},
    "one-at-a-time": {"in waiting:": "in waiting[:1]:"},
    "changes-its-input": {
        "in waiting:": "in list(waiting):",
        "budget -= n": "budget -= n\n        waiting.remove(request)",
    },
}
