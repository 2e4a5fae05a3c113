"""Graders of top-p and of the roofline."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from exercises.grading import Diagnoses, Exercise
from exercises.judging.judge import judge
from exercises.judging.slips import slips

# ---------------------------------------------------------------------- 2.6 top-p


def right_top_p(probs: Tensor, p: float) -> Tensor:
    """Token by token, from the likeliest down, in float64."""
    ranked = sorted(((value, token) for token, value in enumerate(probs.double().tolist())), reverse=True)
    kept, total = [0.0] * len(ranked), 0.0
    for value, token in ranked:
        if total >= p:
            break
        kept[token] = value
        total += value
    return torch.tensor([value / total for value in kept], dtype=torch.float64).float()


def top_p_in_tensors(probs: Tensor, p: float) -> Tensor:
    """The same in tensors, as learners write it: the mistakes are slips in this one."""
    probs = probs.double()
    ordered, places = probs.sort(descending=True)
    before = ordered.cumsum(0) - ordered
    kept = torch.zeros_like(probs)
    kept[places] = torch.where(before < p, ordered, 0.0)
    return (kept / kept.sum()).float()


KEPT, SHARES = "before < p", "(kept / kept.sum()).float()"
TOP_P = {
    "top-p-cuts-the-crossing-token": (
        {KEPT: "before + ordered <= p"},
        {KEPT: "(before + ordered <= p).index_fill(0, torch.tensor(0), True)"},
    ),
    "top-p-keeps-one-too-many": (
        {KEPT: "(before < p).index_fill(0, (before < p).sum().clamp(max=len(probs) - 1), True)"},
        {KEPT: "before <= p"},
    ),
    # Cuts what lies above p, moved on by one place; the first place got lost.
    "top-p-empty": {KEPT: "~torch.cat(((before + ordered > p)[:1], (before + ordered > p)[:-1]))"},
    "top-p-softmax-again": (
        {SHARES: "kept.float().softmax(0)"},
        {SHARES: "kept.masked_fill(kept == 0, -math.inf).float().softmax(0)"},
    ),
    "top-p-not-divided": {SHARES: "kept.float()"},
    "top-p-divided-by-p": {SHARES: "(kept / p).float()"},
    "top-p-order-lost": {"kept[places] = ": "kept = "},
    "top-p-put-back-wrongly": {
        "kept[places] = ": "kept = ",
        "kept / kept.sum()": "kept[places] / kept.sum()",
    },
    # The largest p, the tail 1 - p, or a share of the likeliest (min-p) as a limit for each.
    "top-p-single-probability": (
        {KEPT: "ordered >= p"},
        {KEPT: "ordered >= 1 - p"},
        {KEPT: "ordered >= p * ordered[0]"},
    ),
    "top-p-least-likely-first": {"descending=True": "descending=False"},
    "top-p-not-sorted": {"probs.sort(descending=True)": "probs, torch.arange(len(probs))"},
    "top-p-nothing-cut": {KEPT: "before < 2"},
}
TOP_P_SAYS = Diagnoses.of("p2e6_top_p")


def grade_top_p(keep_top_p: Callable) -> None:
    random = torch.Generator().manual_seed(8)
    four = torch.tensor([0.15, 0.5, 0.05, 0.3])
    cases = [(four, 0.7), (four, 0.4), (four, 0.9), (four, 0.97), (torch.tensor([0.6, 0.1, 0.3]), 0.65)]
    cases += [(torch.tensor([1.0]), 0.5), (four, 1.0), (torch.tensor([0.02, 0.9, 0.03, 0.05]), 0.1)]
    # A set that holds exactly p is enough. (These fractions are exact in binary, so rounding cannot matter.)
    cases += [(torch.tensor([0.25, 0.5, 0.125, 0.125]), p) for p in (0.5, 0.75)]
    for size, p in ((10, 0.3), (50, 0.5), (200, 0.8), (1000, 0.9)):
        cases.append((torch.randn(size, generator=random).mul(2).softmax(0), p))
    judge(
        keep_top_p,
        cases,
        right_top_p,
        slips(top_p_in_tensors, TOP_P),
        TOP_P_SAYS,
        show=lambda probs, p: (
            f"keep_top_p({[round(x, 3) for x in probs.tolist()]}, {p})"
            if len(probs) < 8
            else f"keep_top_p({len(probs)} probabilities, {p})"
        ),
        keeps_input=False,  # a sampler needs the whole of them no more
    )


# ---------------------------------------------------------------------- 2.7 the roofline


def _times(n: int, params: float, size: float, bandwidth: float, rate: float) -> tuple[float, float]:
    return 2 * params * n / rate, params * size / bandwidth


def right_seconds(n: int, params: float, size: float, bandwidth: float, rate: float) -> float:
    return max(_times(n, params, size, bandwidth, rate))


SECONDS = {
    "roofline-adds": lambda *a: sum(_times(*a)),
    "roofline-takes-the-faster": lambda *a: min(_times(*a)),
    "roofline-one-operation": lambda n, params, size, bandwidth, rate: max(
        params * n / rate, params * size / bandwidth
    ),
    "roofline-weights-for-each-token": lambda n, params, size, bandwidth, rate: max(
        2 * params * n / rate, n * params * size / bandwidth
    ),
    "roofline-bytes-forgotten": lambda n, params, size, bandwidth, rate: max(
        2 * params * n / rate, params / bandwidth
    ),
    "roofline-bits": lambda n, params, size, bandwidth, rate: max(
        2 * params * n / rate, 8 * params * size / bandwidth
    ),
    "roofline-milliseconds": lambda *a: 1000 * right_seconds(*a),
    "roofline-only-memory": lambda n, params, size, bandwidth, rate: params * size / bandwidth,
    "roofline-only-arithmetic": lambda n, params, size, bandwidth, rate: 2 * params * n / rate,
    "roofline-one-token": lambda n, params, size, bandwidth, rate: max(
        2 * params / rate, params * size / bandwidth
    ),
    "roofline-exchanged": lambda n, params, size, bandwidth, rate: max(
        2 * params * n / bandwidth, params * size / rate
    ),
}
TTFT_SAYS = Diagnoses.of("p2e7_ttft")
FREE = {
    "free-tokens-without-two": lambda size, bandwidth, rate: size * rate / bandwidth,
    "free-tokens-bytes-forgotten": lambda size, bandwidth, rate: rate / (2 * bandwidth),
    "free-tokens-only-ridge": lambda size, bandwidth, rate: rate / bandwidth,
    "free-tokens-bits": lambda size, bandwidth, rate: 8 * size * rate / (2 * bandwidth),
    "free-tokens-rounded": (
        lambda size, bandwidth, rate: int(size * rate / (2 * bandwidth)),
        lambda size, bandwidth, rate: round(size * rate / (2 * bandwidth)),
        lambda size, bandwidth, rate: math.ceil(size * rate / (2 * bandwidth)),
    ),
    "free-tokens-upside-down": lambda size, bandwidth, rate: 2 * bandwidth / (size * rate),
}


def grade_ttft(step_seconds: Callable, tokens_for_free: Callable) -> None:
    card = (1e12, 1e14)
    cases = [(n, 8e9, 2, *card) for n in (1, 1000, 100, 50, 200, 80, 120)]
    cases += [
        (3, 1e9, 1, 1e12, 1e12),
        (1, 8e9, 1, *card),
        (300, 124e6, 4, 20e9, 120e9),
        (2, 124e6, 4, 20e9, 120e9),
        (12, 70e9, 0.5, 3e12, 9e14),
    ]
    judge(
        step_seconds,
        cases,
        right_seconds,
        SECONDS,
        TTFT_SAYS,
        show=lambda n, params, size, bandwidth, rate: (
            f"step_seconds({n}, {params:g}, {size}, bandwidth={bandwidth:g}, rate={rate:g})"
        ),
    )
    judge(
        tokens_for_free,
        [(2, *card), (4, 20e9, 120e9), (1, 3e12, 9e14), (0.5, 3e12, 9e14), (2, 3.35e12, 989e12)],
        lambda size, bandwidth, rate: size * rate / (2 * bandwidth),
        FREE,
        TTFT_SAYS,
        show=lambda size, bandwidth, rate: f"tokens_for_free({size}, bandwidth={bandwidth:g}, rate={rate:g})",
    )


EXERCISES = [
    Exercise("p2e6_top_p", ("keep_top_p",), grade_top_p),
    Exercise("p2e7_ttft", ("step_seconds", "tokens_for_free"), grade_ttft),
]
