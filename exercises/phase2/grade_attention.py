"""Graders of one head and of grouped queries."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from exercises.grading import same, show
from exercises.judging.judge import When
from exercises.judging.solutions import Solution


def causal(n: int, m: int) -> Tensor:
    """[n, m] of bool: query i stands at position m - n + i."""
    return torch.ones(n, m, dtype=torch.bool).tril(m - n)


# ---------------------------------------------------------------------- 2.2 one head

SCALE, MASKED = " / q.shape[-1] ** 0.5", 'scores.masked_fill(~mask, float("-inf"))'
SOFTMAX = f"torch.softmax({MASKED}, dim=-1)"


def _of_too_low_a_number(got: Tensor, want: Tensor, q: Tensor, *_: Tensor) -> bool:
    """Where all scores are very low, a mask's number is not low enough."""
    return bool(q.abs().max() > 100) and bool(got.isfinite().all())


HEAD = Solution(
    "p2e2_one_head",
    one_head={
        "head-not-scaled": {SCALE: ""},
        "head-divided-by-d": {SCALE: " / q.shape[-1]"},
        "head-scaled-by-tokens": ({SCALE: " / len(k) ** 0.5"}, {SCALE: " / len(q) ** 0.5"}),
        "head-multiplied": {SCALE: " * q.shape[-1] ** 0.5"},
        "head-softmax-over-queries": {"dim=-1": "dim=0"},
        "head-masked-after-softmax": {MASKED: "scores", "weights @ v": "weights.masked_fill(~mask, 0) @ v"},
        "head-masked-with-zero": {'float("-inf")': "0.0"},
        "head-no-mask": {MASKED: "scores"},
        "head-mask-inverted": {"~mask": "mask"},
        "head-own-mask": (  # the second as PyTorch's attention does it with is_causal=True
            {"~mask": "torch.ones_like(mask).triu(len(k) - len(q) + 1)"},
            {"~mask": "torch.ones_like(mask).triu(1)"},
        ),
        "head-no-softmax": {SOFTMAX: "scores.masked_fill(~mask, 0)"},
        "head-masked-not-low-enough": (
            {'float("-inf")': "-1e4"},
            {'float("-inf")': "-100.0"},
            When(_of_too_low_a_number),
        ),
        "head-row-all-masked": When(lambda got, want, q, *_: bool(got.isnan().any()) and q.abs().max() < 50),
        "head-overflows": When(lambda got, want, *_: not got.isfinite().all()),
    },
)


@HEAD.grader
def grade_head(one_head: Callable) -> None:
    random = torch.Generator().manual_seed(1)
    by_hand = [[1.0], [1.0]], [[0.0], [math.log(3)]], [[10.0], [20.0]]
    cases = [(*map(torch.tensor, by_hand), causal(2, 2))]
    for n, m, d in ((3, 3, 4), (2, 5, 8), (1, 6, 16), (5, 5, 2), (4, 9, 64)):
        cases.append((*(torch.randn(rows, d, generator=random) for rows in (n, m, m)), causal(n, m)))
    cases.append((*cases[1][:3], torch.eye(3, dtype=torch.bool)))
    # Scores of 7,200 in one row and of -28,800 in another: e to such powers is infinite, or 0.
    q = torch.tensor([[60.0] * 4, [-240.0] * 4])
    k = torch.tensor([[60.0] * 4, [59.0] * 4, [61.0] * 4])
    v = torch.tensor([[1.0, 2, 3, 4], [5.0, 6, 7, 8], [9.0, 10, 11, 12]])
    large = q, k, v, torch.tensor([[True, False, False], [True, True, False]])
    HEAD.judge("one_head", one_head, cases)
    HEAD.judge("one_head", one_head, [large], only=("head-masked-not-low-enough", "head-overflows"))


# ---------------------------------------------------------------------- 2.3 grouped queries

SHARED, STACKED = "h // group", "torch.stack(outputs, dim=1)"
EACH_HEAD = "q[:, h], k[:, h // group], v[:, h // group]) for h in range(num_heads)"
GROUPS = Solution(
    "p2e3_grouped",
    grouped_attention={
        "group-repeat-not-interleave": {SHARED: "h % num_kv_heads"},
        "group-mask-top-left": {"diagonal=m - n + 1": "diagonal=1"},
        "group-no-mask": {'.masked_fill(future, float("-inf"))': ""},
        "group-always-two": {SHARED: "h // 2"},
        "group-only-the-first": {SHARED: "0"},
        "group-divided-by-kv-heads": {SHARED: "h // num_kv_heads"},
        "group-backwards": {SHARED: "-1 - h // group"},
        "group-no-sharing": {SHARED: "min(h, num_kv_heads - 1)"},
        "group-heads-stacked-first": {STACKED: "torch.stack(outputs)"},
        "group-heads-mixed-up": {STACKED: "torch.stack(outputs).view(q.shape)"},
        "group-queries-averaged": {
            EACH_HEAD: "q[:, g * group : (g + 1) * group].mean(1), k[:, g], v[:, g]) for g in range(num_kv_heads)"
        },
    },
)


def _first_token(got: Tensor, want: Tensor) -> tuple[str, str]:
    """The heads of the first token that differs: all tokens would fill the screen."""
    token = next(n for n in range(len(want)) if not same(got[n], want[n], 1e-4))
    of = f"token {token} of {len(want)}, the first that differs, a row for each head:\n"
    return of + show(got[token]), of + show(want[token])


@GROUPS.grader
def grade_grouped(grouped_attention: Callable) -> None:
    random = torch.Generator().manual_seed(2)
    cases = []
    shapes = ((3, 3, 4, 2, 4), (2, 5, 8, 2, 4), (1, 4, 6, 3, 8), (4, 4, 3, 3, 2), (3, 6, 4, 1, 4))
    for n, m, heads, kv_heads, d in shapes:
        q = torch.randn(n, heads, d, generator=random)
        cases.append((q, *(torch.randn(m, kv_heads, d, generator=random) for _ in range(2))))
    GROUPS.judge("grouped_attention", grouped_attention, cases, present=_first_token)
