"""Grader of exercise 3.6: attention over scattered blocks."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from exercises.grading import Diagnoses, Exercise, call, expect_equal, guard
from exercises.judging.judge import judge
from exercises.judging.slips import slips
from phase3_paged_attention.paging import paged_attention_loops

Attention = Callable[[Tensor, Tensor, Tensor, list[int], int], Tensor]

SAYS = Diagnoses.of("p3e6_paged_attention")
AFTERWARDS = Diagnoses.of("p3e6_paged_attention afterwards")


def walk(q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Sequence[int], n: int) -> Tensor:
    """The online softmax a block at a time."""
    q, k_cache, v_cache = q.double(), k_cache.double(), v_cache.double()
    size, dim = k_cache.shape[1:]
    largest, total, acc = -math.inf, 0.0, torch.zeros(dim, dtype=torch.float64)
    for logical in range(-(-n // size)):
        tokens = min(size, n - logical * size)
        scores = k_cache[table[logical], :tokens] @ q / dim**0.5
        new = max(largest, float(scores.max()))
        shrink, weights = math.exp(largest - new), (scores - new).exp()
        total = total * shrink + float(weights.sum())
        acc = acc * shrink + weights @ v_cache[table[logical], :tokens]
        largest = new
    return acc / total


SHRUNK = "acc * shrink + weights @"
MISTAKES = {
    "logical-as-physical": {"table[logical]": "logical"},
    "no-square-root": {" / dim**0.5": ""},
    "divided-by-head-dim": {"dim**0.5": "dim"},
    "reads-past-the-end": {"min(size, n - logical * size)": "size"},
    "last-block-lost": {
        "range(-(-n // size))": "range(n // size)",
        "acc / total": "acc / total if total else acc",
    },
    "acc-not-rescaled": {"acc * shrink": "acc"},
    "sum-not-rescaled": {"total * shrink": "total"},
    "nothing-rescaled": {"acc * shrink": "acc", "total * shrink": "total"},
    "not-divided": {"acc / total": "acc"},
    "softmax-of-each-block": {SHRUNK: "acc + scores.softmax(0) @", "acc / total": "acc / -(-n // size)"},
}


def by_token(walk: Attention) -> Attention:
    """The walk a token at a time: some mistakes look different then."""

    def walk_tokens(q: Tensor, k_cache: Tensor, v_cache: Tensor, table: list[int], n: int) -> Tensor:
        size, dim = k_cache.shape[1:]
        singles = [int(table[t // size]) * size + t % size for t in range(n)]
        return walk(q, k_cache.reshape(-1, 1, dim), v_cache.reshape(-1, 1, dim), singles, n)

    return walk_tokens


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
        {d: (wrong, by_token(wrong)) for d, wrong in slips(walk, MISTAKES).items()},
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
