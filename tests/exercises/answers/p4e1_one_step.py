"""Answers to exercise 4.1."""


def _lag(request):
    return request.num_tokens - request.num_computed_tokens


def right_one_list(running, waiting, budget, max_num_seqs):
    plan, used = [], 0
    for request in [*running, *waiting][:max_num_seqs]:
        n = min(_lag(request), budget - used)
        used += n
        plan.append([request, n])
    return [part for part in plan if part[1] > 0]


def right_one_by_one(running, waiting, budget, max_num_seqs):
    for request in (running + waiting)[:max_num_seqs]:
        n = min(_lag(request), budget)
        if n:
            yield request, n
        budget -= n


LAG = "request.num_tokens - request.num_computed_tokens"
STOPS = "if seats == 0 or budget == 0:\n            break"
RIGHT = [right_one_list, right_one_by_one]
WRONG = {
    # Takes it that nothing of a waiting request is computed.
    "wrong-result": {f"{LAG}, budget)\n        plan": "request.num_tokens, budget)\n        plan"},
    "budget-per-request": {"budget -= n": "pass"},
    "lag-ignores-computed": {LAG: "request.num_tokens"},
    "waiting-first": {
        "in running:": "in waiting[: max_num_seqs - len(running)]:",
        "in waiting:": "in running:",
        "if seats == 0 or": "if",
    },
    "one-token-for-running": {"budget)\n        if n": "budget, 1)\n        if n"},
    "seats-ignored": {"if seats == 0 or": "if"},
    "running-seats-not-counted": {"max_num_seqs - len(running)": "max_num_seqs"},
    "parts-of-nothing": {"if n > 0:": "if True:", " or budget == 0": ""},
    "jumps-the-queue": {STOPS: f"if seats == 0 or {LAG} > budget:\n            continue"},
    "whole-prompts-only": {STOPS: f"if seats == 0 or {LAG} > budget:\n            break"},
    "idle-seats-given-away": {"seats == 0": "len(plan) == max_num_seqs"},
    "changes-the-lists": {
        "in waiting:": "in list(waiting):",
        "seats -= 1": "seats -= 1\n        waiting.remove(request)",
    },
    "changes-the-requests": {
        "return plan": "for request, n in plan:\n        request.num_computed_tokens += n\n    return plan"
    },
}
