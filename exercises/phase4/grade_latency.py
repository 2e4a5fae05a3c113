"""Grader of exercise 4.5: percentiles and goodput."""

import math
import random
from collections.abc import Callable
from statistics import fmean

from exercises.grading import Diagnoses, Exercise
from exercises.judging.judge import judge
from exercises.judging.slips import slips
from exercises.phase4.small_requests import BY_HAND
from phase4_scheduler.simulator import RequestRecord, percentiles, summarise


def _line(ordered, place):
    place = min(max(place, 0), len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


PERCENTILES = {
    "index-off-by-one": lambda v, r: sorted(v)[min(int(r / 100 * len(v)), len(v) - 1)],
    "one-place-too-far": lambda v, r: _line(sorted(v), r / 100 * len(v)),
    "no-line-between": lambda v, r: sorted(v)[int(r / 100 * (len(v) - 1))],
    "rounded-place": lambda v, r: sorted(v)[round(r / 100 * (len(v) - 1))],
    "nearest-rank": lambda v, r: sorted(v)[max(0, math.ceil(r / 100 * len(v)) - 1)],
    "not-sorted": lambda v, r: _line(v, r / 100 * (len(v) - 1)),
    "from-the-top": lambda v, r: _line(sorted(v, reverse=True), r / 100 * (len(v) - 1)),
    "whole-fraction": lambda v, r: sorted(v)[r * (len(v) - 1)],
}
PERCENTILES_SAYS = Diagnoses.of("p4e5_percentiles_goodput percentile")
GOODPUT = Diagnoses.of("p4e5_percentiles_goodput goodput")


def _goodput(requests, ttft_slo, tpot_slo):
    records = [RequestRecord("", arrival, 1, len(times), list(times)) for arrival, times in requests]
    return summarise(records, ttft_slo, tpot_slo).goodput


def _goodput_by_hand(requests, ttft_slo, tpot_slo):
    good = 0
    for arrival, times in requests:
        gaps = [b - a for a, b in zip(times, times[1:])]
        mean_gap = sum(gaps) / max(len(gaps), 1)
        good += times[0] - arrival <= ttft_slo and mean_gap <= tpot_slo
    begin = min(arrival for arrival, _ in requests)
    end = max(times[-1] for _, times in requests)
    return good / (end - begin)


def _averages_first(requests, ttft_slo, tpot_slo):
    mean_gaps = [(times[-1] - times[0]) / max(len(times) - 1, 1) for _, times in requests]
    kept = (
        fmean(times[0] - arrival for arrival, times in requests) <= ttft_slo and fmean(mean_gaps) <= tpot_slo
    )
    return _goodput_by_hand(requests, math.inf, math.inf) if kept else 0.0


MEAN_GAP, BEGIN, RATE = (
    "sum(gaps) / max(len(gaps), 1)",
    "min(arrival for arrival, _ in requests)",
    "good / (end - begin)",
)
GOODPUT_WRONG = {
    "averages-first": _averages_first,
    "worst-gap": {MEAN_GAP: "max(gaps, default=0)"},
    "either-half": {"ttft_slo and mean_gap": "ttft_slo or mean_gap"},
    "absolute-ttft": {"times[0] - arrival": "times[0]"},
    "ttft-in-the-mean": {MEAN_GAP: "(times[-1] - arrival) / len(times)"},
    "gaps-counted-as-tokens": {MEAN_GAP: "sum(gaps) / len(times)"},
    "limit-not-kept": {"<=": "<"},
    "share-not-rate": {RATE: "good / len(requests)"},
    "count-not-rate": {RATE: "good"},
    "run-begins-late": {BEGIN: "min(times[0] for _, times in requests)"},
    "run-begins-with-the-first-listed": {BEGIN: "requests[0][0]"},
    "clock-from-zero": {RATE: "good / end"},
    "adds-up-times": {RATE: "good / sum(times[-1] - arrival for arrival, times in requests)"},
    "one-token-answer": {MEAN_GAP: "sum(gaps) / len(gaps)"},
}


def grade_percentiles(percentile: Callable, goodput: Callable) -> str:
    rng = random.Random(5)
    cases = [([40, 10, 30, 20], 50), ([40, 10, 30, 20], 100), ([3.0], 95), ([5, 1, 9], 0)]
    for _ in range(100):
        values = [round(rng.expovariate(1), 3) for _ in range(rng.choice((1, 2, 5, 20, 100, 101)))]
        cases.append((values, rng.choice((0, 5, 25, 50, 90, 95, 99, 100))))
    judge(
        percentile,
        cases,
        lambda values, rank: percentiles(values, [rank])[0],
        PERCENTILES,
        PERCENTILES_SAYS,
        show=lambda v, r: f"p{r} of {v if len(v) <= 8 else f'{len(v)} values'}",
        tolerance=1e-6,
        present=lambda got, want: (f"{got:.6g}", f"{want:.6g}"),
        otherwise=BY_HAND,
    )
    _grade_goodput(goodput, rng)
    return f"{len(cases)} percentiles beside the course's own, and 65 runs with good and bad requests."


def _grade_goodput(goodput: Callable, rng: random.Random) -> None:
    cases = [
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
        cases.append((requests, rng.choice((0.5, 1.0)), rng.choice((0.1, 0.15))))

    def tried(requests, ttft_slo, tpot_slo):
        small = [(round(a, 3), [round(t, 3) for t in times]) for a, times in requests[:3]]
        more = f" and {len(requests) - 3} more" if len(requests) > 3 else ""
        return f"goodput of {small}{more}; ttft_slo {ttft_slo}, tpot_slo {tpot_slo}"

    judge(
        goodput,
        cases,
        _goodput,
        slips(_goodput_by_hand, GOODPUT_WRONG),
        GOODPUT,
        show=tried,
        tolerance=1e-6,
        present=lambda got, want: (f"{got:.6g} a second", f"{want:.6g} a second"),
        otherwise=BY_HAND,
    )


EXERCISES = [
    Exercise("p4e5_percentiles_goodput", ("percentile", "goodput"), grade_percentiles),
]
