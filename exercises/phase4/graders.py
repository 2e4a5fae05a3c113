"""The exercises of phase 4: what each asks for, its hints, and which grader judges it."""

from __future__ import annotations

from exercises.grading import Exercise
from exercises.phase4.grade_batching import grade_static_continuous
from exercises.phase4.grade_chunks import grade_chunks
from exercises.phase4.grade_lab import grade_names
from exercises.phase4.grade_latency import grade_percentiles
from exercises.phase4.grade_preemption import grade_preemption
from exercises.phase4.grade_step import grade_one_step

EXERCISES = [
    Exercise(
        "p4e1_one_step", ("share_budget",), grade_one_step,
        (
            "There is one number that everybody takes from. Who comes first, and when does it end?",
            "n = min(num_tokens - num_computed_tokens, what is left of the budget); free seats = max_num_seqs - len(running).",
            "for each who runs:\n    n as above; if n > 0: list it, take n off the budget\n"
            "for each who waits, from the head:\n    stop without a seat or without budget\n"
            "    n as above; list it, take off n and a seat",
        ),
    ),
    Exercise(
        "p4e2_preemption", ("step",), grade_preemption,
        (
            "Go through `running` by index, since it may get shorter behind you. What do you repeat until the blocks are there?",
            "while not pool.allocate(request, num_computed_tokens + n): the last of running leaves, to the left end of waiting.",
            "index = 0; while index < len(running) and budget > 0:\n"
            "    n = min(lag, budget)\n"
            "    while no blocks for it:\n"
            "        victim = running.pop(); free its blocks; computed = 0; waiting.appendleft(victim)\n"
            "        if the victim is the request itself: those who run are through\n"
            "    list it, take n off the budget, index + 1\n"
            "if nobody was preempted: admit from the head while seats, budget and must_fit allow.",
        ),
    ),
    Exercise(
        "p4e3_chunks", ("tokens_now", "admit"), grade_chunks,
        (
            "Three limits, one after the other: what it lags, the threshold, the budget. The order of the last two matters.",
            "n = num_tokens - num_computed_tokens; n = min(n, threshold) if there is one and others live; then the budget.",
            "tokens_now:\n    n as above; if n > budget: 0 if it may not be cut, otherwise the budget; else n\n"
            "admit:\n    for each from the head: n = tokens_now(...); n is 0: stop; list it; take n off the budget",
        ),
    ),
    Exercise(
        "p4e4_static_continuous", ("static", "continuous"), grade_static_continuous,
        (
            "Static: one clock for all. Continuous: a clock for each seat.",
            "static: clock += max(batch). continuous: the next user takes the seat that is free first.",
            "static:\n    for each batch of `seats` users: clock += its longest answer; each of them is done at clock\n"
            "continuous:\n    free = [0] * seats\n    for each user: take the seat with the smallest number\n"
            "        add the length to it; that sum is the step",
        ),
    ),
    Exercise(
        "p4e5_percentiles_goodput", ("percentile", "goodput"), grade_percentiles,
        (
            "Where is p100 in a sorted list of n values? And p0? How many steps are between them?",
            "place = rank / 100 * (n - 1). Good: ttft <= ttft_slo and (last - first) / (tokens - 1) <= tpot_slo.",
            "percentile:\n    sort; place; value below + (value above - value below) * (fraction of the place)\n"
            "goodput:\n    count the requests that keep both halves (one token: no gap)\n    divide by last token - first arrival",
        ),
    ),
    Exercise(
        "p4d1_names_without_blocks", ("preempt_one", "lying"), grade_names,
        (
            "When does a block get its name, and when is it filled? Who can come between the two?",
            "Blocks 0 to num_computed_tokens // block_size - 1 were full before this step. The names of all later ones are of this step.",
            "before the blocks are freed, and before num_computed_tokens is set to 0:\n"
            "    take the names off all its blocks from number num_computed_tokens // block_size on\n"
            "the rest as it was\n"
            "lying: 10 // 4 = 2, so the blocks from number 2 on",
        ),
        seconds=20.0,
    ),
]  # fmt: skip
