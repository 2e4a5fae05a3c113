"""Grader of exercise 3.6: attention over scattered blocks."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from exercises.grading import Diagnoses, Exercise, call, expect_equal, guard
from exercises.judging.judge import judge
from phase3_paged_attention.paging import paged_attention_loops

Attention = Callable[[Tensor, Tensor, Tensor, list[int], int], Tensor]

SAYS = Diagnoses.of("p3e6_paged_attention")
AFTERWARDS = Diagnoses.of("p3e6_paged_attention afterwards")


def walk(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Sequence[int], n: int, mistake: str = ""
) -> Tensor:
    """The online softmax a block at a time, with one mistake on request."""
    q, k_cache, v_cache = q.double(), k_cache.double(), v_cache.double()
    size, dim = k_cache.shape[1:]
    scale = dim ** {"no-square-root": 0.0, "divided-by-head-dim": -1.0}.get(mistake, -0.5)
    largest, total, acc = -math.inf, 0.0, torch.zeros(dim, dtype=torch.float64)
    of_blocks = []
    for logical in range(n // size if mistake == "last-block-lost" else -(-n // size)):
        physical = logical if mistake == "logical-as-physical" else table[logical]
        tokens = size if mistake == "reads-past-the-end" else min(size, n - logical * size)
        scores = k_cache[physical, :tokens] @ q * scale
        values = v_cache[physical, :tokens]
        of_blocks.append(scores.softmax(0) @ values)
        new = max(largest, float(scores.max()))
        shrink = math.exp(largest - new)
        weights = (scores - new).exp()
        total = total * (1 if mistake in ("sum-not-rescaled", "nothing-rescaled") else shrink) + float(
            weights.sum()
        )
        acc = acc * (1 if mistake in ("acc-not-rescaled", "nothing-rescaled") else shrink) + weights @ values
        largest = new
    if mistake == "softmax-of-each-block":
        return torch.stack(of_blocks).mean(0)
    return acc if mistake == "not-divided" else acc / total if total else acc


def by_token(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Sequence[int], n: int, mistake: str
) -> Tensor:
    """As `walk`, a token at a time: some mistakes look different then."""
    size, dim = k_cache.shape[1:]
    singles = [int(table[t // size]) * size + t % size for t in range(n)]
    flat_k, flat_v = k_cache.reshape(-1, 1, dim), v_cache.reshape(-1, 1, dim)
    return walk(q, flat_k, flat_v, singles, n, mistake)


def make_case(seed: int, n: int, size: int, dim: int, unused: float, spread: float = 2.0) -> tuple:
    """Keys and values of one request, scattered at random; every other place holds `unused`."""
    g = torch.Generator().manual_seed(seed)
    blocks = -(-n // size)
    num_blocks = 2 * blocks + 2
    table = (1 + torch.randperm(num_blocks - 1, generator=g)[:blocks]).tolist()
    keys, values = torch.randn(n, dim, generator=g), torch.randn(n, dim, generator=g)
    q = spread * torch.randn(dim, generator=g)
    k_cache, v_cache = (torch.full((num_blocks, size, dim), unused) for _ in range(2))
    if unused == unused:
        junk = [torch.randn(num_blocks, size, dim, generator=g) for _ in range(2)]
        k_cache, v_cache = (c + j for c, j in zip((k_cache, v_cache), junk, strict=True))
    for t in range(n):
        k_cache[table[t // size], t % size], v_cache[table[t // size], t % size] = keys[t], values[t]
    return q, k_cache, v_cache, table, n


def course(q: Tensor, k_cache: Tensor, v_cache: Tensor, table: list[int], n: int) -> Tensor:
    """The course's own loops, in double precision."""
    k, v = k_cache.double()[:, :, None].tolist(), v_cache.double()[:, :, None].tolist()
    return torch.tensor(paged_attention_loops([q.double().tolist()], k, v, table, n)[0], dtype=torch.float64)


def as_row(got: Any) -> Tensor:
    return torch.as_tensor(got, dtype=torch.float64).reshape(-1)


def row_of(attend: Attention, case: tuple, tried: str) -> Tensor:
    q, k_cache, v_cache, table, n = case
    return as_row(guard(attend, q.clone(), k_cache.clone(), v_cache.clone(), list(table), n, tried=tried))


def grade_attention(paged_attention: Attention) -> str:
    shapes = [(11, 4, 8), (1, 4, 8), (8, 4, 8), (5, 1, 4), (37, 16, 64), (30, 4, 16)]
    judge(
        paged_attention,
        [make_case(seed, *shape, unused=0.5) for seed, shape in enumerate(shapes)],
        course,
        {d: (partial(walk, mistake=d), partial(by_token, mistake=d)) for d in SAYS},
        SAYS,
        show=lambda q, k_cache, v_cache, table, n: (
            f"{n} tokens in blocks of {k_cache.shape[1]}, head_dim {len(q)}, block_table {table}"
        ),
        tolerance=1e-3,
        clean=as_row,
        present=lambda got, want: (_short(got), _short(want)),
        keeps_input=False,
    )
    _unused_places(paged_attention)
    _large_and_small_scores(paged_attention)
    _a_long_text(paged_attention)
    return (
        "Six requests beside the course's own loops; NaN in every place of others; scores over 1,000 and under -1,000; a text "
        "of 400 tokens, for which no tensor was made that is as long as the text."
    )


def _short(x: Tensor) -> str:
    more = ", ..." if len(x) > 4 else ""
    return "[" + ", ".join(f"{float(a):.4f}" for a in x[:4]) + more + "]"


def _unused_places(paged_attention: Attention) -> None:
    case = make_case(50, 11, 4, 8, unused=math.nan)
    tried = "11 tokens in blocks of 4; every place that is not the request's holds NaN"
    got = row_of(paged_attention, case, tried)
    if not bool(torch.isfinite(got).all()):
        raise AFTERWARDS.no("unused-places-read", tried, _short(got), _short(course(*case)))
    expect_equal(got, course(*case), tried=tried, tolerance=1e-3)


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


def _a_long_text(paged_attention: Attention) -> None:
    case = make_case(70, 400, 4, 8, unused=0.5)
    tried = "400 tokens in blocks of 4, head_dim 8"
    q, k_cache, v_cache, table, n = case

    def watched(*args: Any) -> tuple[Any, tuple[int, ...]]:
        with _Largest(q, k_cache, v_cache) as largest:
            return guard(paged_attention, *args, tried=tried), largest.shape

    got, shape = call(watched, q, k_cache, v_cache, list(table), n)
    expect_equal(as_row(got), course(*case), tried=tried, tolerance=1e-3)
    if math.prod(shape) >= n:
        got, expected = f"a tensor of shape {shape}", "the largest score, a sum, and head_dim values"
        raise AFTERWARDS.no("keeps-everything", tried, got, expected)


def _large_and_small_scores(paged_attention: Attention) -> None:
    for sign, diagnosis in ((1, "no-maximum"), (-1, "maximum-starts-at-zero")):
        q, k_cache, v_cache, table, n = make_case(60, 9, 4, 8, unused=0.5)
        q = sign * torch.full((8,), 400.0)
        k_cache = k_cache.abs() + 1.0  # so that all scores lie far on one side of 0
        case = (q, k_cache, v_cache, table, n)
        tried = f"9 tokens in blocks of 4, and every score is {'above 1,000' if sign > 0 else 'below -1,000'}"
        expected = course(*case)
        try:
            given = (q.clone(), k_cache.clone(), v_cache.clone(), list(table), n)
            got = as_row(call(paged_attention, *given, tried=tried))
            broken, shown = not bool(torch.isfinite(got).all()), _short(got)
        except (OverflowError, ZeroDivisionError) as error:
            broken, shown = True, f"{type(error).__name__}: {error}"
        if broken or (sign < 0 and not bool(got.any())):
            raise AFTERWARDS.no(diagnosis, tried, shown, _short(expected))
        expect_equal(got, expected, tried=tried, tolerance=1e-3)


EXERCISES = [
    Exercise("p3e6_paged_attention", ("paged_attention",), grade_attention),
]
