"""Grader of exercise 5.1: paged decode attention as a Triton kernel, interpreted."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from exercises.grading import Diagnoses, Exercise, call, expect_equal
from exercises.phase5.launching import body_of, decode_arguments, launch_in_far_blocks, launch_interpreted

SAYS = Diagnoses.of("p5e1_paged_decode")
OTHERS = Diagnoses.of("p5e1_paged_decode others")

VARIANTS = {
    "masked-with-zero": ("values masked", "values read"),
    "wrong-kv-head": ("modulo", "query head", "first"),
    "softmax-of-each-block": ("mean", "sum"),
    "keys-as-values": ("keys", "values"),
}


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


def walk(case: Case, mistake: str = "", variant: str = "") -> np.ndarray:
    """What a kernel with this mistake writes: [requests, heads, dim], in float64."""
    requests, heads, dim = case.q.shape
    block_size, kv_heads = case.k_cache.shape[1:3]
    group = heads // kv_heads
    block_stride, token_stride, head_stride = case.k_cache.stride()[:3]
    if mistake == "strides-assumed":
        block_stride = block_size * kv_heads * dim
    if mistake == "block-stride-times-size":
        block_stride *= block_size
    if mistake == "page-id-as-token":
        block_stride = token_stride
    if mistake == "strides-mixed":
        token_stride, head_stride = head_stride, token_stride
    scale = {"no-scale": 1.0, "scale-twice": 1.0 / dim}.get(mistake, dim**-0.5)
    keys_at, values_at = (m.double().numpy() for m in case.memory)
    if mistake == "keys-as-values":
        keys_at = values_at = keys_at if variant == "keys" else values_at
    entries = torch.as_strided(case.tables, (case.tables.stride(0) * (requests + 4),), (1,)).tolist()
    out = np.zeros((requests, heads, dim))
    for r in range(requests):
        n = case.lens[0] if mistake == "length-of-request-0" else case.lens[r]
        first_entry = 0 if mistake == "table-of-request-0" else r * case.tables.stride(0)
        if mistake == "row-by-own-blocks":
            first_entry = r * -(-n // block_size)
        for h in range(heads):
            kv = h // group
            if mistake == "wrong-kv-head":
                kv = {"modulo": h % kv_heads, "query head": h, "first": 0}[variant]
            q = case.q[r, h].double().numpy()
            largest, total, acc, parts = -math.inf, 0.0, np.zeros(dim), []
            for logical in range(n // block_size if mistake == "last-block-lost" else -(-n // block_size)):
                physical = logical if mistake == "logical-as-physical" else entries[first_entry + logical]
                valid = logical * block_size + np.arange(block_size) < n
                if mistake == "unmasked-tail":
                    valid[:] = True
                begins = case.origin + physical * block_stride + kv * head_stride
                begins = begins + np.arange(block_size) * token_stride
                places = np.clip(begins[:, None] + np.arange(dim), 0, len(keys_at) - 1)
                scores, values = keys_at[places] @ q * scale, values_at[places]
                if mistake == "masked-with-zero":
                    scores = np.where(valid, scores, 0.0)
                    values = np.where((valid | (variant == "values read"))[:, None], values, 0.0)
                else:
                    scores, values = np.where(valid, scores, -math.inf), np.where(valid[:, None], values, 0.0)
                new = max(largest, scores.max())
                shrink, weights = np.exp(largest - new), np.exp(scores - new)
                parts.append(weights @ values / weights.sum())
                keeps_total = mistake in ("total-not-rescaled", "nothing-rescaled")
                keeps_acc = mistake in ("acc-not-rescaled", "nothing-rescaled")
                if mistake == "total-of-the-last-block":
                    total = 0.0
                total = total * (1.0 if keeps_total else shrink) + weights.sum()
                acc = acc * (1.0 if keeps_acc else shrink) + weights @ values
                largest = -math.inf if mistake == "largest-never-moves" else new
            if mistake == "softmax-of-each-block":
                out[r, h] = np.sum(parts, 0) / (len(parts) if variant == "mean" else 1)
            else:
                out[r, h] = acc if mistake == "not-divided" else acc / total if total else math.nan
    return out


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
    for mistake in SAYS:
        for variant in VARIANTS.get(mistake, ("",)):
            with np.errstate(all="ignore"):
                wrong = walk(case, mistake, variant)
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
