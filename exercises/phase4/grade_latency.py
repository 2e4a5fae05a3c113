"""Graders of exercises 4.4 and 4.5: static against continuous batching, percentiles and goodput."""

import random
from collections.abc import Callable

from exercises.judging.judge import Exercise

# ---------------------------------------------------------------------- 4.4 batching

ENDS, HANDED_OUT = "clock += max(batch)", "done += [clock] * len(batch)"
PLACE, TAKEN = "free_after.index(min(free_after))", "free_after[place] += length"
LOOP = "    for length in lengths:"
BATCHING = Exercise(
    "p4e4_static_continuous",
    static={
        "hands-out-early": {HANDED_OUT: "done += [clock - max(batch) + n for n in batch]"},
        "adds-up": {ENDS: "clock += sum(batch)"},
        "clock-starts-anew": {ENDS: "clock = max(batch)"},
        "first-of-the-batch": {ENDS: "clock += batch[0]"},
    },
    continuous={
        "waits-for-the-batch": {
            LOOP: """    for user, length in enumerate(lengths):
        if user % max_num_seqs == 0:
            free_after = [max(free_after)] * max_num_seqs"""
        },
        "place-empty-for-a-step": {TAKEN: f"{TAKEN} + (free_after[place] > 0)"},
        "two-in-a-place": (
            {TAKEN: "free_after[place] = max(free_after[place] - 1, 0) + length"},
            {TAKEN: f"{TAKEN} - (free_after[place] > 0)"},
        ),
        "shortest-first": {
            "    done = []": "    done = [0] * len(lengths)",
            LOOP: "    for user in sorted(range(len(lengths)), key=lengths.__getitem__):\n        length = lengths[user]",
            "done.append(free_after[place])": "done[user] = free_after[place]",
        },
        "fixed-places": {PLACE: "len(done) % max_num_seqs"},
    },
)


@BATCHING.grader
def grade_static_continuous(static: Callable, continuous: Callable) -> None:
    rng = random.Random(4)
    cases = [([5, 2, 3], 2), ([500, 10, 800], 3), ([4, 4, 4, 4], 2), ([3, 9, 2, 7, 1], 2)]
    cases += [([rng.randint(1, 30) for _ in range(rng.randint(1, 9))], rng.randint(1, 4)) for _ in range(100)]
    BATCHING.judge("static", static, cases)
    BATCHING.judge("continuous", continuous, cases)


# ---------------------------------------------------------------------- 4.5 percentiles and goodput

PLACE, MEAN_GAP = "rank / 100 * (len(ordered) - 1)", "(times[-1] - times[0]) / gaps if gaps else 0.0"
VALUE = "ordered[below] + (ordered[above] - ordered[below]) * (place - below)"
BEGIN, RATE = "min(arrival for arrival, _ in requests)", "good / (end - begin)"
BEGINS = "    begin = "
AVERAGES_FIRST = f"""    firsts = [times[0] - arrival for arrival, times in requests]
    gaps = [(times[-1] - times[0]) / max(len(times) - 1, 1) for _, times in requests]
    kept = sum(firsts) / len(firsts) <= ttft_slo and sum(gaps) / len(gaps) <= tpot_slo
    good = kept * len(requests)
{BEGINS}"""
LATENCY = Exercise(
    "p4e5_percentiles_goodput",
    percentile={
        "index-off-by-one": (
            {VALUE: "ordered[min(len(ordered) - 1, int(len(ordered) * rank / 100))]"},
            {VALUE: "ordered[int(len(ordered) * rank / 100)]"},  # fails at p100
        ),
        "one-place-too-far": {PLACE: "min(rank / 100 * len(ordered), len(ordered) - 1)"},
        "no-line-between": {VALUE: "ordered[below]"},
        "rounded-place": {VALUE: "ordered[round(place)]"},
        "nearest-rank": {VALUE: "ordered[max(0, -(-rank * len(ordered) // 100) - 1)]"},
        "not-sorted": {"sorted(values)": "values"},
        "from-the-top": {"rank / 100": "(1 - rank / 100)"},
        "whole-fraction": {PLACE: "rank * (len(ordered) - 1)"},
    },
    goodput={
        "averages-first": {BEGINS: AVERAGES_FIRST},
        "worst-gap": {MEAN_GAP: "max(b - a for a, b in zip(times, times[1:])) if gaps else 0.0"},
        "either-half": (
            {"ttft_slo and mean_gap": "ttft_slo or mean_gap"},
            {"times[0] - arrival <= ttft_slo and ": ""},
            {" and mean_gap <= tpot_slo": ""},
        ),
        "absolute-ttft": {"times[0] - arrival": "times[0]"},
        "ttft-in-the-mean": {MEAN_GAP: "(times[-1] - arrival) / len(times)"},
        "gaps-counted-as-tokens": {MEAN_GAP: "(times[-1] - times[0]) / len(times)"},
        "limit-not-kept": {"<=": "<"},
        "share-not-rate": {RATE: "good / len(requests)"},
        "count-not-rate": {RATE: "good"},
        "run-begins-late": {
            BEGIN: "min(times[0] for _, times in requests)",
            "(end - begin)": "(end - begin or 1.0)",
        },
        "run-begins-with-the-first-listed": {BEGIN: "requests[0][0]"},  # right only if listed as they arrived
        "clock-from-zero": {RATE: "good / end"},
        "adds-up-times": {RATE: "good / sum(times[-1] - arrival for arrival, times in requests)"},
        "one-token-answer": {" if gaps else 0.0": ""},
    },
)


@LATENCY.grader
def grade_percentiles(percentile: Callable, goodput: Callable) -> None:
    rng = random.Random(5)
    cases = [([40, 10, 30, 20], 50), ([40, 10, 30, 20], 100), ([3.0], 95), ([5, 1, 9], 0)]
    for _ in range(100):
        values = [round(rng.expovariate(1), 3) for _ in range(rng.choice((1, 2, 5, 20, 100, 101)))]
        cases.append((values, rng.choice((0, 5, 25, 50, 90, 95, 99, 100))))
    LATENCY.judge("percentile", percentile, cases, tolerance=1e-6)
    runs = [
        ([(2.0, [2.5, 2.6, 2.7]), (2.0, [4.5, 4.6]), (3.0, [3.2, 4.2, 5.2])], 1.0, 0.5),
        ([(1.0, [1.5, 1.6, 2.6]), (1.5, [2.0])], 1.0, 0.6),
        ([(1.0, [1.5, 2.0, 2.5]), (1.5, [2.0, 2.25])], 1.0, 0.375),  # a mean gap of 0.5, too slow
        ([(1.0, [1.5, 1.75, 2.0]), (1.5, [2.5, 3.0])], 0.5, 0.25),  # the first is at both limits exactly
        ([(1.0, [1.25, 1.5, 1.75]), (1.5, [1.75, 3.0])], 0.25, 0.25),
    ]
    for _ in range(60):
        requests, clock = [], rng.uniform(1, 20)
        for _ in range(rng.randint(1, 8)):
            clock += rng.expovariate(2)
            times = [clock + rng.expovariate(1.5)]
            for _ in range(rng.choice((0, 1, 4, 9))):
                times.append(times[-1] + rng.expovariate(8))
            requests.append((clock, times))
        rng.shuffle(requests)  # a log may list them as they ended
        runs.append((requests, rng.choice((0.5, 1.0)), rng.choice((0.1, 0.15))))
    LATENCY.judge("goodput", goodput, runs, tolerance=1e-6)
