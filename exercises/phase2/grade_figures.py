"""Graders of top-p and of the roofline."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from exercises.grading import Diagnoses, Exercise
from exercises.judging.judge import judge

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


def top_p_with(
    keep: Callable[[Tensor, float], Tensor], divide: bool = True, back: str = "to its place"
) -> Callable:
    """`keep(sorted probabilities, p)` says which of them stay."""

    def top_p(probs: Tensor, p: float) -> Tensor:
        ordered, places = probs.double().sort(descending=True)
        kept = torch.where(keep(ordered, p), ordered, 0.0)
        if divide:
            kept = kept / kept.sum()
        if back == "to its place":
            kept = torch.zeros_like(kept).scatter(0, places, kept)
        elif back == "gathered":  # the permutation instead of its inverse
            kept = kept[places]
        return kept.float()

    return top_p


def _right_keep(ordered: Tensor, p: float) -> Tensor:
    return ordered.cumsum(0) - ordered < p


def _one_more(ordered: Tensor, p: float) -> Tensor:
    keep = _right_keep(ordered, p)
    keep[min(int(keep.sum()), len(keep) - 1)] = True
    return keep


def _cuts_but_keeps_one(ordered: Tensor, p: float) -> Tensor:
    keep = ordered.cumsum(0) <= p
    keep[0] = True
    return keep


def _shifted(ordered: Tensor, p: float) -> Tensor:
    """Cut what lies above p, moved on by one place; the first place got lost."""
    above = ordered.cumsum(0) > p
    above[1:] = above[:-1].clone()
    return ~above


def _softmax_again(probs: Tensor, p: float) -> Tensor:
    kept = top_p_with(_right_keep, divide=False)(probs, p)
    return kept.softmax(0)


def _softmax_of_the_kept(probs: Tensor, p: float) -> Tensor:
    kept = top_p_with(_right_keep, divide=False)(probs, p)
    return kept.masked_fill(kept == 0, float("-inf")).softmax(0)


def _least_likely_first(probs: Tensor, p: float) -> Tensor:
    ordered, places = probs.double().sort()
    kept = torch.where(_right_keep(ordered, p), ordered, 0.0)
    return torch.zeros_like(kept).scatter(0, places, kept / kept.sum()).float()


def _not_sorted(probs: Tensor, p: float) -> Tensor:
    kept = torch.where(_right_keep(probs.double(), p), probs.double(), 0.0)
    return (kept / kept.sum()).float()


TOP_P = {
    "top-p-cuts-the-crossing-token": (
        top_p_with(lambda o, p: o.cumsum(0) <= p),
        top_p_with(_cuts_but_keeps_one),
    ),
    "top-p-keeps-one-too-many": (top_p_with(_one_more), top_p_with(lambda o, p: o.cumsum(0) - o <= p)),
    "top-p-empty": top_p_with(_shifted),
    "top-p-softmax-again": (_softmax_again, _softmax_of_the_kept),
    "top-p-not-divided": top_p_with(_right_keep, divide=False),
    "top-p-divided-by-p": lambda probs, p: (
        top_p_with(_right_keep, divide=False)(probs, p).double() / p
    ).float(),
    "top-p-order-lost": top_p_with(_right_keep, back="stays sorted"),
    "top-p-put-back-wrongly": top_p_with(_right_keep, back="gathered"),
    "top-p-single-probability": top_p_with(lambda o, p: o >= p),
    "top-p-least-likely-first": _least_likely_first,
    "top-p-not-sorted": _not_sorted,
    "top-p-nothing-cut": lambda probs, p: probs,
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
        TOP_P,
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
