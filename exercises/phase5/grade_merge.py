"""Grader of exercise 5.2: merging the splits of a context."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from exercises.judging.judge import Exercise, When
from exercises.judging.verdict import NotYet

Merge = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

LARGEST = "largest = log_sums.max()"
NO_NAN, NOTHING = "outs = outs.where(weights[:, None] > 0, 0.0)", "torch.zeros(outs.shape[1]), largest"
OUT, LOG = "weights @ outs / total", "largest + total.log()"
NOT_FINITE = When(lambda got, *_: not all(part.isfinite().all() for part in got))
EXERCISE = Exercise(
    "p5e2_merge_splits",
    merge={
        "averaged": {OUT: "outs.mean(0)"},
        "outs-added": {OUT: "outs.sum(0)"},
        "log-as-weight": ({OUT: "log_sums @ outs / log_sums.sum()"}, {OUT: "log_sums @ outs"}),
        "not-divided": ({OUT: "weights @ outs"}, {OUT: "log_sums.exp() @ outs"}),
        "powers-of-two": {OUT: "(powers := 2.0 ** (log_sums - largest)) @ outs / powers.sum()"},
        "best-split-only": {OUT: "outs[log_sums.argmax()]"},
        "log-sum-is-the-maximum": {LOG: "largest"},
        "log-sums-added": {LOG: "log_sums.sum()"},
        "log-sums-averaged": {LOG: "log_sums.mean()"},
        "maximum-not-added-back": {LOG: "total.log()"},
        "sum-without-logarithm": ({LOG: "largest.exp() * total"}, {LOG: "total"}, {LOG: "total + largest"}),
        "no-maximum": NOT_FINITE,
        "empty-split-is-read": ({NO_NAN: "pass"}, NOT_FINITE),
        "empty-split-counts": (
            {  # empty splits get the logarithm 0
                LARGEST: f"outs, log_sums = outs.nan_to_num(), log_sums.nan_to_num(neginf=0.0)\n    {LARGEST}"
            },
            When(lambda got, *_: bool(got[0].isfinite().all())),
        ),
        "all-empty": (
            {"if largest == -torch.inf:": "if False:"},
            {NOTHING: f"{NOTHING}.new_zeros(())"},
            When(lambda *_: True),
        ),
    },
)
LATE = ("no-maximum", "empty-split-is-read", "empty-split-counts", "all-empty")


def _pair(got: Any) -> list[Tensor]:
    """out [head_dim] and log_sum [], in float64."""
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        what = f"{type(got).__name__} of shape {tuple(got.shape)}" if isinstance(got, Tensor) else got
        raise EXERCISE.says().no("not-a-pair", "merge(outs, log_sums)", what, "(out, log_sum)")
    out, log_sum = (torch.as_tensor(x, dtype=torch.float64).detach() for x in got)
    if log_sum.numel() != 1:
        says = "`out` has head_dim numbers, `log_sum` is a single one."
        raise NotYet("wrong-shape", says, "merge(outs, log_sums)", tuple(log_sum.shape), ())
    return [out.reshape(-1), log_sum.reshape(())]


@EXERCISE.grader
def grade_merge(merge: Merge) -> None:
    def judge(cases: list[tuple[Tensor, Tensor]], *only: str) -> None:
        EXERCISE.judge("merge", merge, cases, only=only, clean=_pair)

    def splits(seed: int, n: int, dim: int, spread: float, middle: float) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(seed)
        return torch.randn(n, dim, generator=g), middle + spread * torch.randn(n, generator=g)

    sizes = [(2, 4, 1.0), (3, 8, 2.0), (7, 8, 4.0), (1, 4, 1.0), (16, 32, 1.0)]
    by_hand = torch.tensor([[10.0], [40.0]]), torch.tensor([6.0, 2.0]).log()
    early = [diagnosis for diagnosis, _ in EXERCISE.mistakes["merge"] if diagnosis not in LATE]
    judge([by_hand, *(splits(seed, *size, 3.0) for seed, size in enumerate(sizes))], *early)
    judge([splits(30, 4, 8, 1.0, middle) for middle in (1000.0, -1000.0)], "no-maximum")
    zeros, poison = [], []
    for empty in ([1], [0], [1, 3]):
        outs, log_sums = splits(40, 4, 8, 1.0, 0.0)
        log_sums[empty] = -math.inf
        empty_rows = torch.zeros(4, 1, dtype=torch.bool)
        empty_rows[empty] = True
        zeros.append((outs.masked_fill(empty_rows, 0.0), log_sums))
        poison.append((outs.masked_fill(empty_rows, math.nan), log_sums))
    judge(zeros, "empty-split-counts")
    judge(poison, "empty-split-is-read", "empty-split-counts")
    judge([(torch.full((n, 4), math.nan), torch.full((n,), -math.inf)) for n in (1, 3)], "all-empty")
