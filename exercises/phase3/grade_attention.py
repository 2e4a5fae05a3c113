"""Grader of exercise 3.6: attention over scattered blocks."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from exercises.judging.judge import Exercise, Raised, When

Attention = Callable[[Tensor, Tensor, Tensor, list[int], int], Tensor]

SHRINK_ACC, SHRINK_TOTAL, DIVIDED = "acc * shrink", "total * shrink", "acc / total"
LARGEST, NEW = "largest, total, acc = -math.inf", "max(largest, scores.max().item())"
# The walk a token at a time: some mistakes look different then.
BY_TOKEN = {
    "block_size, head_dim = k_cache.shape[1:]": """size, head_dim = k_cache.shape[1:]
    block_table = [block * size + place for block in block_table for place in range(size)]
    k_cache, v_cache = (c.reshape(-1, 1, head_dim) for c in (k_cache, v_cache))
    block_size = 1"""
}


def _broken(got: Any, *_: Any) -> bool:
    return isinstance(got, Raised) or not bool(got[0].isfinite().all())


def _in_steps_of_both(slip: dict[str, str]) -> tuple[dict[str, str], ...]:
    return slip, BY_TOKEN | slip


EXERCISE = Exercise(
    "p3e6_paged_attention",
    paged_attention={
        "logical-as-physical": {"block_table[logical]": "logical"},
        "no-square-root": {" / math.sqrt(head_dim)": ""},
        "divided-by-head-dim": {"math.sqrt(head_dim)": "head_dim"},
        "reads-past-the-end": {"min(block_size, context_len - logical * block_size)": "block_size"},
        "last-block-lost": {"math.ceil(context_len / block_size)": "context_len // block_size"},
        "acc-not-rescaled": _in_steps_of_both({SHRINK_ACC: "acc"}),
        "sum-not-rescaled": _in_steps_of_both({SHRINK_TOTAL: "total"}),
        "nothing-rescaled": _in_steps_of_both({SHRINK_ACC: "acc", SHRINK_TOTAL: "total"}),
        "not-divided": {DIVIDED: "acc"},
        "softmax-of-each-block": {
            f"{SHRINK_ACC} + weights @": "acc + weights / weights.sum() @",
            DIVIDED: "acc / len(block_table)",
        },
        "no-maximum": (
            {NEW: "0.0"},
            {NEW: "0.0", "torch.exp(scores - new)": "torch.tensor([math.exp(score) for score in scores])"},
            When(_broken),
        ),
        "maximum-starts-at-zero": (*_in_steps_of_both({LARGEST: "largest, total, acc = 0.0"}), When(_broken)),
        "unused-places-read": When(_broken),
        "keeps-everything": When(lambda got, want, *_: got[1] != want[1]),
    },
)


def make_case(
    seed: int, n: int, size: int, dim: int, unused: float = 0.5, sign: int = 0
) -> tuple[Tensor, Tensor, Tensor, list[int], int]:
    """Keys and values of one request, scattered at random; every other place holds `unused`, and noise unless that is NaN.

    Args:
        sign: 1 or -1: all scores are far above or below 0.
    """
    g = torch.Generator().manual_seed(seed)
    blocks = -(-n // size)
    num_blocks = 2 * blocks + 2
    table = (1 + torch.randperm(num_blocks - 1, generator=g)[:blocks]).tolist()
    keys, values = torch.randn(n, dim, generator=g), torch.randn(n, dim, generator=g)
    q = 2.0 * torch.randn(dim, generator=g)
    k_cache, v_cache = (unused + torch.randn(num_blocks, size, dim, generator=g) for _ in range(2))
    for t in range(n):
        k_cache[table[t // size], t % size], v_cache[table[t // size], t % size] = keys[t], values[t]
    if sign:
        q, k_cache = sign * torch.full((dim,), 400.0), k_cache.abs() + 1.0
    return q, k_cache, v_cache, table, n


class _Largest(TorchFunctionMode):
    """Watches an answer: the largest tensor of floats that it makes. Views of what it was given do not count."""

    def __init__(self, *given: Tensor) -> None:
        super().__init__()
        self.given = {tensor.untyped_storage().data_ptr() for tensor in given}
        self.shape: tuple[int, ...] = ()

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else [out]:
            is_larger = isinstance(x, Tensor) and x.is_floating_point() and x.numel() > math.prod(self.shape)
            if is_larger and x.untyped_storage().data_ptr() not in self.given:
                self.shape = tuple(x.shape)
        return out


def watched(
    paged_attention: Attention, q: Tensor, k_cache: Tensor, v_cache: Tensor, table: list[int], n: int
) -> list:
    """The result as a row, and what is kept of a text while it is read."""
    with _Largest(q, k_cache, v_cache) as largest:
        out = paged_attention(q, k_cache, v_cache, table, n)
    kept = f"a tensor of shape {largest.shape}" if n > 100 and math.prod(largest.shape) >= n else "little"
    return out if out is None else [torch.as_tensor(out, dtype=torch.float64).reshape(-1), kept]


@EXERCISE.grader
def grade_attention(paged_attention: Attention) -> None:
    def judge(cases: list[tuple], what: str, *only: str) -> None:
        EXERCISE.judge(
            "paged_attention",
            paged_attention,
            cases,
            only=only or None,
            play=watched,
            show=lambda q, k_cache, v_cache, table, n: (
                f"{n} tokens in blocks of {k_cache.shape[1]}, head_dim {len(q)}, block_table {table}{what}"
            ),
            tolerance=1e-3,
            keeps_input=False,
        )

    shapes = [(11, 4, 8), (1, 4, 8), (8, 4, 8), (5, 1, 4), (37, 16, 64), (30, 4, 16)]
    late = ("no-maximum", "maximum-starts-at-zero", "unused-places-read", "keeps-everything")
    known = [diagnosis for diagnosis, _ in EXERCISE.mistakes["paged_attention"] if diagnosis not in late]
    judge([make_case(seed, *shape) for seed, shape in enumerate(shapes)], "", *known)
    judge([make_case(50, 11, 4, 8, math.nan)], "; every place that is not the request's holds NaN", late[2])
    judge([make_case(60, 9, 4, 8, sign=1)], "; every score is above 1,000", "no-maximum")
    judge([make_case(60, 9, 4, 8, sign=-1)], "; every score is below -1,000", "maximum-starts-at-zero")
    judge([make_case(70, 400, 4, 8)], "", "keeps-everything")
