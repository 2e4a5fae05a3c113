"""Answers to exercise 4.3."""

from tests.exercises.changed import changed


def right_now(request, budget, threshold, alone, chunked):
    n = request.num_tokens - request.num_computed_tokens
    if threshold > 0 and not alone:
        n = min(n, threshold)
    if n <= budget:
        return n
    return budget if chunked else 0


def right_now_in_one(request, budget, threshold, alone, chunked):
    limit = threshold if threshold and not alone else request.num_tokens
    n = min(request.num_tokens - request.num_computed_tokens, limit)
    return min(n, budget) * (chunked or n <= budget)


def right_admit(waiting, budget, threshold, alone, chunked):
    plan = []
    for request in waiting:
        n = right_now(request, budget, threshold, alone, chunked)
        if not n:
            break
        plan.append((request, n))
        budget -= n
    return plan


def right_admit_by_index(waiting, budget, threshold, alone, chunked):
    plan, i = [], 0
    while i < len(waiting) and (n := right_now(waiting[i], budget, threshold, alone, chunked)) > 0:
        plan, budget, i = [*plan, (waiting[i], n)], budget - n, i + 1
    return plan


def budget_first(request, budget, threshold, alone, chunked):
    n = request.num_tokens - request.num_computed_tokens
    if not chunked and n > budget:
        return 0
    return right_now(request, budget, threshold, alone, chunked)


def threshold_with_chunks_only(request, budget, threshold, alone, chunked):
    n = request.num_tokens - request.num_computed_tokens
    if not chunked:
        return n if n <= budget else 0
    return right_now(request, budget, threshold, alone, chunked)


def empties_the_queue(waiting, budget, threshold, alone, chunked):
    plan = []
    while waiting and (n := right_now(waiting[0], budget, threshold, alone, chunked)):
        plan.append((waiting.pop(0), n))
        budget -= n
    return plan


RIGHT = [(right_now, right_admit), (right_now_in_one, right_admit_by_index)]
WRONG = {
    "wrong-result": [
        (changed(right_now, {"threshold > 0": "threshold > 1"}), right_admit),
        (right_now, changed(right_admit, {"not n": "not n or n == budget"})),  # never uses the budget up
    ],
    "begins-anew": (changed(right_now, {" - request.num_computed_tokens": ""}), right_admit),
    "threshold-for-one-alone": (changed(right_now, {" and not alone": ""}), right_admit),
    "threshold-of-nothing": (changed(right_now, {"threshold > 0 and not alone": "not alone"}), right_admit),
    "cuts-anyway": (changed(right_now, {"budget if chunked else 0": "budget"}), right_admit),
    "over-the-budget": (changed(right_now, {"return budget if": "return n if"}), right_admit),
    "threshold-only-with-chunks": (threshold_with_chunks_only, right_admit),
    "waits-before-the-threshold": (budget_first, right_admit),
    "jumps-the-queue": (right_now, changed(right_admit, {"break": "continue"})),
    "budget-per-request": (right_now, changed(right_admit, {"        budget -= n\n": ""})),
    "parts-of-nothing": (right_now, changed(right_admit, {"break": "pass"})),
    "one-at-a-time": (
        right_now,
        lambda waiting, budget, threshold, alone, chunked: right_admit(
            waiting[:1], budget, threshold, alone, chunked
        ),
    ),
    "changes-its-input": (right_now, empties_the_queue),
}
