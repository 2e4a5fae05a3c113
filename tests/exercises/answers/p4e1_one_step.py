"""Answers to exercise 4.1."""

from tests.exercises.changed import changed


def _lag(request):
    return request.num_tokens - request.num_computed_tokens


def right_loops(running, waiting, budget, max_num_seqs):
    plan = []
    for request in running:
        n = min(_lag(request), budget)
        if n:
            plan.append((request, n))
            budget -= n
    free = max_num_seqs - len(running)
    for request in waiting[:free]:
        if budget:
            n = min(_lag(request), budget)
            plan.append((request, n))
            budget -= n
    return plan


def right_one_list(running, waiting, budget, max_num_seqs):
    plan, used = [], 0
    for request in [*running, *waiting][:max_num_seqs]:
        n = min(_lag(request), budget - used)
        used += n
        plan.append([request, n])
    return [part for part in plan if part[1] > 0]


def skips_long_ones(running, waiting, budget, max_num_seqs):
    plan = right_one_list(running, [], budget, max_num_seqs)
    budget -= sum(n for _, n in plan)
    seats = max_num_seqs - len(running)
    for request in waiting:
        if seats and 0 < _lag(request) <= budget:
            plan.append((request, _lag(request)))
            budget -= _lag(request)
            seats -= 1
    return plan


def no_pieces(running, waiting, budget, max_num_seqs):
    plan = right_one_list(running, [], budget, max_num_seqs)
    budget -= sum(n for _, n in plan)
    for request in waiting[: max_num_seqs - len(running)]:
        if _lag(request) > budget:
            break
        plan.append((request, _lag(request)))
        budget -= _lag(request)
    return plan


def takes_out_of_the_queue(running, waiting, budget, max_num_seqs):
    plan = right_one_list(running, [], budget, max_num_seqs)
    budget -= sum(n for _, n in plan)
    seats = max_num_seqs - len(running)
    while waiting and seats and budget:
        request = waiting.pop(0)
        plan.append((request, min(_lag(request), budget)))
        budget -= plan[-1][1]
        seats -= 1
    return plan


def moves_on(running, waiting, budget, max_num_seqs):
    plan = right_one_list(running, waiting, budget, max_num_seqs)
    for request, n in plan:
        request.num_computed_tokens += n
    return plan


def counts_the_plan(running, waiting, budget, max_num_seqs):
    plan = right_one_list(running, [], budget, len(running))
    budget -= sum(n for _, n in plan)
    for request in waiting:
        if len(plan) == max_num_seqs or budget == 0:
            break
        plan.append((request, min(_lag(request), budget)))
        budget -= plan[-1][1]
    return plan


def right_one_by_one(running, waiting, budget, max_num_seqs):
    for request in (running + waiting)[:max_num_seqs]:
        n = min(_lag(request), budget)
        if n:
            yield request, n
        budget -= n


RIGHT = [right_loops, right_one_list, right_one_by_one]
WRONG = {
    "wrong-result": changed(  # takes it that nothing of a waiting request is computed
        right_loops,
        {"_lag(request), budget)\n            plan": "request.num_tokens, budget)\n            plan"},
    ),
    "budget-per-request": changed(right_one_list, {"budget - used": "budget"}),
    "lag-ignores-computed": changed(right_one_list, {"_lag(request)": "request.num_tokens"}),
    "waiting-first": changed(
        right_one_list,
        {"[*running, *waiting][:max_num_seqs]": "waiting[: max_num_seqs - len(running)] + running"},
    ),
    "one-token-for-running": changed(right_loops, {"budget)\n        if n:": "budget, 1)\n        if n:"}),
    "seats-ignored": changed(right_one_list, {"[:max_num_seqs]": ""}),
    "running-seats-not-counted": changed(
        right_one_list, {"[:max_num_seqs]": "[: len(running) + max_num_seqs]"}
    ),
    "parts-of-nothing": changed(right_one_list, {" if part[1] > 0": ""}),
    "jumps-the-queue": skips_long_ones,
    "whole-prompts-only": no_pieces,
    "idle-seats-given-away": counts_the_plan,
    "changes-the-lists": takes_out_of_the_queue,
    "changes-the-requests": moves_on,
}
