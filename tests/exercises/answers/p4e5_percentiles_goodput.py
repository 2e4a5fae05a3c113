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


RIGHT = [(right_by_hand, right_goodput_numpy)]
WRONG = {
    "changes-its-input": [
        {"ordered = sorted(values)": "values.sort()\n    ordered = values"},
        {"good = 0\n": "good = 0\n    requests.sort()\n"},
    ],
}
