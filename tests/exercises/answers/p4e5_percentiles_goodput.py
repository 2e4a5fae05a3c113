"""Answers to exercise 4.5."""

import statistics

import numpy as np


def right_by_hand(values, rank):
    ordered = sorted(values)
    place = rank * (len(ordered) - 1) / 100
    low = int(place)
    if low == len(ordered) - 1:
        return ordered[low]
    part = place - low
    return (1 - part) * ordered[low] + part * ordered[low + 1]


def _rate(requests, kept):
    begin = min(arrival for arrival, _ in requests)
    return sum(kept) / (max(times[-1] for _, times in requests) - begin)


def right_goodput_numpy(requests, ttft_slo, tpot_slo):
    return _rate(
        requests,
        [t[0] - a <= ttft_slo and (len(t) == 1 or np.diff(t).mean() <= tpot_slo) for a, t in requests],
    )


def averages(requests, ttft_slo, tpot_slo):
    ttft = statistics.mean(t[0] - a for a, t in requests)
    itl = statistics.mean(np.diff(t).mean() if len(t) > 1 else 0.0 for _, t in requests)
    return _rate(requests, [ttft <= ttft_slo and itl <= tpot_slo] * len(requests))


def averages_of_all_gaps(requests, ttft_slo, tpot_slo):
    gaps = [gap for _, t in requests for gap in np.diff(t)]
    good = np.mean([t[0] - a for a, t in requests]) <= ttft_slo and (not gaps or np.mean(gaps) <= tpot_slo)
    return _rate(requests, [good] * len(requests))


PLACE = "rank / 100 * (len(ordered) - 1)"
VALUE = "ordered[below] + (ordered[above] - ordered[below]) * (place - below)"
MEAN_GAP = "(times[-1] - times[0]) / gaps if gaps else 0.0"
BEGIN = "min(arrival for arrival, _ in requests)"
RATE = "good / (end - begin)"
RIGHT = [
    {"percentile": lambda values, rank: np.percentile(values, rank)},
    (right_by_hand, right_goodput_numpy),
]
WRONG = {
    "index-off-by-one": [
        {VALUE: "ordered[min(len(ordered) - 1, int(len(ordered) * rank / 100))]"},
        {VALUE: "ordered[int(len(ordered) * rank / 100)]"},  # fails at p100
    ],
    "one-place-too-far": {PLACE: "min(rank / 100 * len(ordered), len(ordered) - 1)"},
    "no-line-between": {VALUE: "ordered[below]"},
    "rounded-place": {VALUE: "ordered[round(place)]"},
    "nearest-rank": {"percentile": lambda values, rank: np.percentile(values, rank, method="inverted_cdf")},
    "not-sorted": {"sorted(values)": "values"},
    "from-the-top": {"rank / 100": "(1 - rank / 100)"},
    "averages-first": [{"goodput": averages}, {"goodput": averages_of_all_gaps}],
    "worst-gap": {MEAN_GAP: "max(b - a for a, b in zip(times, times[1:])) if gaps else 0.0"},
    "either-half": {"ttft_slo and mean_gap": "ttft_slo or mean_gap"},
    "absolute-ttft": {"times[0] - arrival": "times[0]"},
    "gaps-counted-as-tokens": {MEAN_GAP: "(times[-1] - times[0]) / len(times)"},
    "run-begins-late": {
        BEGIN: "min(times[0] for _, times in requests)",
        "(end - begin)": "(end - begin or 1.0)",
    },
    "share-not-rate": {RATE: "good / len(requests)"},
    "count-not-rate": {RATE: "good"},
    "clock-from-zero": {RATE: "good / end"},
    "adds-up-times": {RATE: "good / sum(times[-1] - arrival for arrival, times in requests)"},
    "one-token-answer": {" if gaps else 0.0": ""},
    "ttft-in-the-mean": {MEAN_GAP: "(times[-1] - arrival) / len(times)"},
    "whole-fraction": {PLACE: "rank * (len(ordered) - 1)"},
    "limit-not-kept": {"<=": "<"},
    # Right only if the requests are listed as they arrived.
    "run-begins-with-the-first-listed": {BEGIN: "requests[0][0]"},
    "changes-its-input": [
        {"ordered = sorted(values)": "values.sort()\n    ordered = values"},
        {"good = 0\n": "good = 0\n    requests.sort()\n"},
    ],
}
