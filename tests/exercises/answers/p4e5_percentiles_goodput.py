"""Answers to exercise 4.5."""

import statistics

import numpy as np

from tests.exercises.changed import changed


def right_numpy(values, rank):
    return np.percentile(values, rank)


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


def right_goodput(requests, ttft_slo, tpot_slo):
    kept = []
    for arrival, times in requests:
        ok = times[0] - arrival <= ttft_slo
        if len(times) > 1:
            ok = ok and (times[-1] - times[0]) / (len(times) - 1) <= tpot_slo
        kept.append(ok)
    return _rate(requests, kept)


def right_goodput_numpy(requests, ttft_slo, tpot_slo):
    return _rate(
        requests,
        [t[0] - a <= ttft_slo and (len(t) == 1 or np.diff(t).mean() <= tpot_slo) for a, t in requests],
    )


def raw_index(values, rank):  # fails at p100
    return sorted(values)[int(len(values) * rank / 100)]


def one_too_far(values, rank):
    ordered = sorted(values)
    place = min(rank / 100 * len(ordered), len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def averages(requests, ttft_slo, tpot_slo):
    ttft = statistics.mean(t[0] - a for a, t in requests)
    itl = statistics.mean(np.diff(t).mean() if len(t) > 1 else 0.0 for _, t in requests)
    return _rate(requests, [ttft <= ttft_slo and itl <= tpot_slo] * len(requests))


def _kept(requests, ttft_slo, tpot_slo):
    begin = min(a for a, _ in requests)
    seconds = max(t[-1] for _, t in requests) - begin
    return round(right_goodput(requests, ttft_slo, tpot_slo) * seconds)


def from_the_first_token(requests, ttft_slo, tpot_slo):
    seconds = max(t[-1] for _, t in requests) - min(t[0] for _, t in requests)
    return _kept(requests, ttft_slo, tpot_slo) / (seconds or 1.0)


def fraction(values, rank):
    """Takes the rank for a number from 0 to 1."""
    ordered = sorted(values)
    return ordered[int(rank * (len(ordered) - 1))]


def averages_of_all_gaps(requests, ttft_slo, tpot_slo):
    gaps = [gap for _, t in requests for gap in np.diff(t)]
    good = np.mean([t[0] - a for a, t in requests]) <= ttft_slo and (not gaps or np.mean(gaps) <= tpot_slo)
    return _rate(requests, [good] * len(requests))


def sorts_in_place(values, rank):
    values.sort()
    return right_by_hand(values, rank)


def sorts_requests_in_place(requests, ttft_slo, tpot_slo):
    requests.sort()
    return right_goodput(requests, ttft_slo, tpot_slo)


RIGHT = [(right_numpy, right_goodput), (right_by_hand, right_goodput_numpy)]
WRONG = {
    "index-off-by-one": [
        (
            lambda values, rank: sorted(values)[min(len(values) - 1, int(len(values) * rank / 100))],
            right_goodput,
        ),
        (raw_index, right_goodput),
    ],
    "one-place-too-far": (one_too_far, right_goodput),
    "no-line-between": (lambda values, rank: np.percentile(values, rank, method="lower"), right_goodput),
    "rounded-place": (
        lambda values, rank: sorted(values)[round((len(values) - 1) * rank / 100)],
        right_goodput,
    ),
    "nearest-rank": (lambda values, rank: np.percentile(values, rank, method="inverted_cdf"), right_goodput),
    "not-sorted": (changed(right_by_hand, {"sorted(values)": "values"}), right_goodput),
    "from-the-top": (lambda values, rank: np.percentile(values, 100 - rank), right_goodput),
    "averages-first": [(right_numpy, averages), (right_numpy, averages_of_all_gaps)],
    "worst-gap": (
        right_numpy,
        changed(
            right_goodput_numpy,
            {"(len(t) == 1 or np.diff(t).mean() <= tpot_slo)": "all(gap <= tpot_slo for gap in np.diff(t))"},
        ),
    ),
    "either-half": (right_numpy, changed(right_goodput_numpy, {"and (": "or ("})),
    "absolute-ttft": (right_numpy, changed(right_goodput_numpy, {"t[0] - a": "t[0]"})),
    "gaps-counted-as-tokens": (
        right_numpy,
        changed(
            right_goodput_numpy,
            {"(len(t) == 1 or np.diff(t).mean() <= tpot_slo)": "(t[-1] - t[0]) / len(t) <= tpot_slo"},
        ),
    ),
    "run-begins-late": (right_numpy, from_the_first_token),
    "share-not-rate": (
        right_numpy,
        lambda requests, ttft_slo, tpot_slo: _kept(requests, ttft_slo, tpot_slo) / len(requests),
    ),
    "count-not-rate": (right_numpy, lambda requests, ttft_slo, tpot_slo: _kept(requests, ttft_slo, tpot_slo)),
    "clock-from-zero": (
        right_numpy,
        lambda requests, ttft_slo, tpot_slo: (
            _kept(requests, ttft_slo, tpot_slo) / max(t[-1] for _, t in requests)
        ),
    ),
    "adds-up-times": (
        right_numpy,
        lambda requests, ttft_slo, tpot_slo: (
            _kept(requests, ttft_slo, tpot_slo) / sum(t[-1] - a for a, t in requests)
        ),
    ),
    "one-token-answer": (
        right_numpy,
        changed(right_goodput_numpy, {"len(t) == 1 or np.diff(t).mean()": "(t[-1] - t[0]) / (len(t) - 1)"}),
    ),
    "ttft-in-the-mean": (
        right_numpy,
        changed(
            right_goodput_numpy,
            {"(len(t) == 1 or np.diff(t).mean() <= tpot_slo)": "(t[-1] - a) / len(t) <= tpot_slo"},
        ),
    ),
    "whole-fraction": (fraction, right_goodput),
    "limit-not-kept": (right_numpy, changed(right_goodput_numpy, {"<=": "<"})),
    # Right only if the requests are listed as they arrived.
    "run-begins-with-the-first-listed": (
        right_numpy,
        lambda requests, ttft_slo, tpot_slo: (
            _kept(requests, ttft_slo, tpot_slo) / (max(t[-1] for _, t in requests) - requests[0][0])
        ),
    ),
    "changes-its-input": [(sorts_in_place, right_goodput), (right_numpy, sorts_requests_in_place)],
}
