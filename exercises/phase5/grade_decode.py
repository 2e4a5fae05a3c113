"""Grader of exercise 5.1: paged decode attention as a Triton kernel, interpreted."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from exercises.grading import Diagnoses, Exercise, call, expect_equal
from exercises.judging.slips import slips
from exercises.phase5.launching import body_of, decode_arguments, launch_in_far_blocks, launch_interpreted

SAYS = Diagnoses.of("p5e1_paged_decode")
OTHERS = Diagnoses.of("p5e1_paged_decode others")


@dataclass
class Case:
    """Tensors of a launch. `memory`: the flat numbers that k_cache and v_cache are views of, margins included."""

    q: torch.Tensor
    memory: tuple[torch.Tensor, torch.Tensor]
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    tables: torch.Tensor
    lens: list[int]
    origin: int
    tried: str


def make_case(
    seed: int,
    lens: list[int],
    block_size: int,
    heads: int,
    kv_heads: int,
    dim: int,
    *,
    unused: float = 0.0,
    spread: float = 1.5,
    apart: bool = False,
) -> Case:
    """Requests scattered over a pool. Places that belong to no request hold noise, or `unused` if that is NaN."""
    g = torch.Generator().manual_seed(seed)
    blocks = [-(-n // block_size) for n in lens]
    num_blocks = sum(blocks) + 3
    ids = (
        1 + torch.randperm(num_blocks - 2, generator=g)
    ).tolist()  # block 0 and the last belong to no request
    rubbish = torch.full((len(lens) + 4, max(blocks) + 1), num_blocks - 1, dtype=torch.int32)
    tables = rubbish[: len(lens)]  # rows behind the last one, for who reads too far
    mine = torch.zeros(num_blocks, block_size, dtype=torch.bool)
    for r, n in enumerate(lens):
        for i in range(blocks[r]):
            tables[r, i] = ids.pop()
            mine[tables[r, i], : min(block_size, n - i * block_size)] = True
    shape = (num_blocks, 2 if apart else 1, block_size, kv_heads, dim)
    size = math.prod(shape)
    memory = tuple(
        torch.randn((2 + block_size) * size, generator=g) for _ in range(2)
    )  # a wrong address lands in the margins
    caches = [m[size : 2 * size].view(shape)[:, 0] for m in memory]
    if math.isnan(unused):
        for m, cache in zip(memory, caches):
            kept = cache[mine].clone()
            m.fill_(math.nan)
            cache[mine] = kept
    q = spread * torch.randn(len(lens), heads, dim, generator=g)
    tried = (
        f"lengths {lens}, blocks of {block_size}, {heads} query head{'s' * (heads > 1)}, "
        f"{kv_heads} KV head{'s' * (kv_heads > 1)}, head_dim {dim}"
    )
    if math.isnan(unused):
        tried += "; NaN in every place that belongs to no request"
    return Case(q, memory, *caches, tables, lens, size, tried)


def walk(case: Case) -> np.ndarray:
    """What the kernel is to write: [requests, heads, dim], in float64, from the flat memory."""
    requests, heads, dim = case.q.shape
    block_size, kv_heads = case.k_cache.shape[1:3]
    block_stride, token_stride, head_stride = case.k_cache.stride()[:3]
    keys_at, values_at = (m.double().numpy() for m in case.memory)
    row_stride = case.tables.stride(0)
    entries = torch.as_strided(case.tables, (row_stride * (requests + 4),), (1,)).tolist()
    out = np.zeros((requests, heads, dim))
    for r, h in np.ndindex(requests, heads):
        n = case.lens[r]
        first_entry, kv = r * row_stride, h // (heads // kv_heads)
        q = case.q[r, h].double().numpy()
        largest, total, acc = -math.inf, 0.0, np.zeros(dim)
        for logical in range(-(-n // block_size)):
            physical = entries[first_entry + logical]
            valid = logical * block_size + np.arange(block_size) < n
            begins = case.origin + physical * block_stride + kv * head_stride
            begins = begins + np.arange(block_size) * token_stride
            places = np.clip(begins[:, None] + np.arange(dim), 0, len(keys_at) - 1)
            scores = np.where(valid, keys_at[places] @ q * dim**-0.5, -math.inf)
            values = np.where(valid[:, None], values_at[places], 0.0)
            new = max(largest, scores.max())
            shrink, weights = np.exp(largest - new), np.exp(scores - new)
            total = total * shrink + weights.sum()
            acc = acc * shrink + weights @ values
            largest = new
        out[r, h] = acc / total if total else math.nan
    return out


KV_HEAD, RESULT, ADDED = (
    "h // (heads // kv_heads)",
    "acc / total if total else math.nan",
    "acc * shrink + weights @ values",
)
SOFTMAX_OF_BLOCK = {ADDED: "acc + weights @ values / weights.sum()"}
NO_SCORE = {"-math.inf)\n": "0.0)\n"}
MISTAKES = {
    "unmasked-tail": {"np.arange(block_size) < n": "np.arange(block_size) < math.inf"},
    "masked-with-zero": (
        NO_SCORE,
        {**NO_SCORE, "np.where(valid[:, None], values_at[places], 0.0)": "values_at[places]"},
    ),
    "acc-not-rescaled": {"acc * shrink": "acc"},
    "total-not-rescaled": {"total * shrink": "total"},
    "nothing-rescaled": {"acc * shrink": "acc", "total * shrink": "total"},
    "page-id-as-token": {"physical * block_stride": "physical * token_stride"},
    "block-stride-times-size": {"physical * block_stride": "physical * block_stride * block_size"},
    "strides-mixed": {
        "block_stride, token_stride, head_stride =": "block_stride, head_stride, token_stride ="
    },
    "strides-assumed": {"physical * block_stride": "physical * block_size * kv_heads * dim"},
    "wrong-kv-head": ({KV_HEAD: "h % kv_heads"}, {KV_HEAD: "h"}, {KV_HEAD: "0"}),
    "no-scale": {" * dim**-0.5": ""},
    "scale-twice": {"dim**-0.5": "dim**-1.0"},
    "largest-never-moves": {"largest = new": "pass"},
    "keys-as-values": ({"values_at[places]": "keys_at[places]"}, {"keys_at[places]": "values_at[places]"}),
    "row-by-own-blocks": {"r * row_stride": "r * -(-n // block_size)"},
    "table-of-request-0": {"r * row_stride": "0"},
    "length-of-request-0": {"case.lens[r]": "case.lens[0]"},
    "logical-as-physical": {"entries[first_entry + logical]": "logical"},
    "last-block-lost": {"range(-(-n // block_size))": "range(n // block_size)"},
    "total-of-the-last-block": {"total * shrink + ": ""},
    "not-divided": {RESULT: "acc"},
    "softmax-of-each-block": (
        {**SOFTMAX_OF_BLOCK, RESULT: "acc / -(-n // block_size)"},
        {**SOFTMAX_OF_BLOCK, RESULT: "acc"},
    ),
}
WAYS = slips(walk, MISTAKES)


def launch(kernel: Any, case: Case) -> np.ndarray:
    out = torch.full_like(case.q, math.nan)
    lens = torch.tensor(case.lens, dtype=torch.int32)
    grid, arguments, constants = decode_arguments(case.q, case.k_cache, case.v_cache, case.tables, lens, out)
    call(_launched, launch_interpreted, case.tried, kernel, grid, *arguments, **constants)
    return out.double().numpy()


def _launched(launcher: Callable[..., None], told: str, *args: Any, **constants: Any) -> None:
    launcher(*args, tried=told, **constants)


def same(a: np.ndarray, b: np.ndarray, tolerance: float = 1e-3) -> bool:
    return bool(
        np.allclose(a, b, rtol=tolerance, atol=tolerance * np.nanmax(np.abs(b), initial=1e-3), equal_nan=True)
    )


def first_difference(got: np.ndarray, expected: np.ndarray) -> tuple[str, str]:
    """Both, at the first request and head where they part."""
    parts = (at for at in np.ndindex(got.shape[:2]) if not same(got[at], expected[at]))
    r, h = next(parts, (0, 0))
    more = ", ..." if got.shape[2] > 4 else ""
    rows = (", ".join(f"{v:.4f}" for v in x[r, h, :4]) + more for x in (got, expected))
    return tuple(f"request {r}, head {h}: [{row}]" for row in rows)


def grade_decode(paged_decode: Any) -> str:
    call(body_of, paged_decode)
    cases = [
        make_case(0, [11, 5, 8], 4, 4, 2, 8),
        make_case(1, [3], 4, 1, 1, 4),
        make_case(2, [17, 1], 16, 2, 2, 16),
        make_case(3, [9, 6, 7], 2, 6, 2, 4),
        make_case(4, [21, 40], 8, 4, 1, 32),
        make_case(5, [10, 7], 4, 4, 2, 8, apart=True),
    ]
    for case in cases:
        got, expected = launch(paged_decode, case), walk(case)
        if not same(got, expected):
            _name_the_mistake(got, expected, case)
    _unused_places(paged_decode)
    _large_and_small_scores(paged_decode)
    _far_blocks(paged_decode)
    return (
        "Six batches beside float64: block sizes 2 to 16, groups of 1 to 4 heads, a cache with gaps; NaN in every place of "
        "others; scores over 1,000 and under -1,000; blocks that lie beyond 2^31."
    )


def _name_the_mistake(got: np.ndarray, expected: np.ndarray, case: Case) -> None:
    shown, wanted = first_difference(got, expected)
    if np.isnan(got).all():
        raise OTHERS.no("nan-everywhere", case.tried, shown, wanted)
    for mistake, ways in WAYS.items():
        for way in ways if isinstance(ways, tuple) else (ways,):
            with np.errstate(all="ignore"):
                wrong = way(case)
            if same(got, wrong) and not same(wrong, expected):
                raise SAYS.no(mistake, case.tried, shown, wanted)
    raise OTHERS.no("wrong-result", case.tried, shown, wanted)


def _unused_places(kernel: Any) -> None:
    case = make_case(50, [11, 5], 4, 2, 1, 8, unused=math.nan)
    got, expected = launch(kernel, case), walk(case)
    if not np.isfinite(got).all():
        raise OTHERS.no("unused-places-read", case.tried, *first_difference(got, expected))
    expect_equal(got, expected, case.tried, tolerance=1e-3)


def _large_and_small_scores(kernel: Any) -> None:
    for sign, diagnosis in ((1, "no-maximum"), (-1, "maximum-starts-at-zero")):
        case = make_case(60, [9], 4, 2, 1, 8)
        case.q.fill_(sign * 400.0)
        case.memory[0].abs_().add_(1.0)  # so that all scores lie far on one side of 0
        case.tried += f"; every score is {'above 1,000' if sign > 0 else 'below -1,000'}"
        got, expected = launch(kernel, case), walk(case)
        if same(got, expected, 5e-3):
            continue
        broken = not np.isfinite(got).all() or (sign < 0 and not got.any())
        raise OTHERS.no(diagnosis if broken else "wrong-result", case.tried, *first_difference(got, expected))


def _far_blocks(kernel: Any) -> None:
    """A pool of 8 GiB of keys, of which only the last few blocks are there."""
    case = make_case(70, [11, 5], 4, 2, 1, 8)
    block_stride = case.k_cache.stride(0)
    first = 2**31 // block_stride
    out = torch.full_like(case.q, math.nan)
    lens = torch.tensor(case.lens, dtype=torch.int32)
    grid, arguments, constants = decode_arguments(
        case.q, case.k_cache, case.v_cache, case.tables + first, lens, out
    )
    case.tried += f"; blocks from number {first:,} on, block_stride {block_stride}"
    try:
        far = (first * block_stride, *arguments)
        call(_launched, launch_in_far_blocks, case.tried, kernel, grid, *far, **constants)
    except OverflowError as error:
        wanted = f"places from {first * block_stride:,} on, in 64 bits"
        raise OTHERS.no("place-in-32-bits", case.tried, str(error), wanted) from None
    expect_equal(out.double().numpy(), walk(case), case.tried, tolerance=1e-3)


EXERCISES = [
    Exercise("p5e1_paged_decode", ("paged_decode",), grade_decode, seconds=40.0),
]
