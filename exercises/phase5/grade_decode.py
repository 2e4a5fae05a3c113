"""Grader of exercise 5.1: paged decode attention as a Triton kernel, interpreted."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from exercises.judging.judge import Gives, Raised, When
from exercises.judging.slips import changed
from exercises.judging.solutions import Solution
from exercises.phase5.launching import decode_arguments, launch_in_far_blocks, launch_interpreted

Case = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # q, k_cache, v_cache, block_tables, context_lens


def make_case(
    seed: int,
    lens: list[int],
    block_size: int,
    heads: int,
    kv_heads: int,
    dim: int,
    *,
    unused: float = 0.0,
    apart: bool = False,
    sign: int = 0,
) -> Case:
    """Requests scattered over a pool. The caches lie in the middle of larger memory: a wrong address lands in the margins.

    Args:
        unused: NaN: it stands in all places that belong to no request, in place of noise.
        apart: whether there is a gap between the blocks.
        sign: 1 or -1: all scores lie far above or below 0.
    """
    g = torch.Generator().manual_seed(seed)
    blocks = [-(-n // block_size) for n in lens]
    num_blocks = sum(blocks) + 3
    ids = (1 + torch.randperm(num_blocks - 2, generator=g)).tolist()  # block 0 and the last are of no request
    # Rows behind the last one, for a kernel that reads too far.
    tables = torch.full((len(lens) + 4, max(blocks) + 1), num_blocks - 1, dtype=torch.int32)[: len(lens)]
    mine = torch.zeros(num_blocks, block_size, dtype=torch.bool)
    for r, n in enumerate(lens):
        for i in range(blocks[r]):
            tables[r, i] = ids.pop()
            mine[tables[r, i], : min(block_size, n - i * block_size)] = True
    shape = (num_blocks, 2 if apart else 1, block_size, kv_heads, dim)
    size = math.prod(shape)
    memory = [torch.randn((2 + block_size) * size, generator=g) for _ in range(2)]
    caches = [m[size : 2 * size].view(shape)[:, 0] for m in memory]
    for m, cache in zip(memory, caches):
        if math.isnan(unused):
            kept = cache[mine].clone()
            m.fill_(math.nan)
            cache[mine] = kept
    q = 1.5 * torch.randn(len(lens), heads, dim, generator=g)
    if sign:
        q.fill_(sign * 400.0)
        memory[0].abs_().add_(1.0)
    return q, *caches, tables, torch.tensor(lens, dtype=torch.int32)


def interpreted(kernel: Any) -> Callable[..., Tensor]:
    """[requests, heads, dim]: what the kernel writes. NaN: it wrote nothing."""

    def play(*case: Tensor) -> Tensor:
        out = torch.full_like(case[0], math.nan)
        grid, arguments, constants = decode_arguments(*case, out)
        launch_interpreted(kernel, grid, *arguments, tried="this case", **constants)
        return out.double()

    return play


def far_away(kernel: Any) -> Callable[..., Tensor]:
    """The same in a pool of 8 GiB of keys, of which only the last few blocks are there."""

    def play(q: Tensor, k_cache: Tensor, v_cache: Tensor, tables: Tensor, lens: Tensor) -> Tensor:
        out, stride = torch.full_like(q, math.nan), k_cache.stride(0)
        first = 2**31 // stride
        grid, arguments, constants = decode_arguments(q, k_cache, v_cache, tables + first, lens, out)
        launch_in_far_blocks(kernel, grid, first * stride, *arguments, tried="this case", **constants)
        return out.double()

    return play


def _broken(got: Any, *_: Any) -> bool:
    return isinstance(got, Raised) or not bool(got.isfinite().all()) or not bool(got.any())


def walk(q: Tensor, k_cache: Tensor, v_cache: Tensor, tables: Tensor, lens: Tensor) -> Tensor:
    """What a kernel is to write, from the flat memory. A mistake in the kernel is a slip in this one: interpreting takes long."""
    heads, dim = q.shape[1:]
    block_size, kv_heads = k_cache.shape[1:3]
    block_stride, token_stride, head_stride = k_cache.stride()[:3]
    keys_at, values_at = (
        torch.as_strided(c, (c.untyped_storage().size() // 4,), (1,), 0) for c in (k_cache, v_cache)
    )
    entries = torch.as_strided(tables, (tables.untyped_storage().size() // 4,), (1,), 0).tolist()
    out = torch.zeros_like(q, dtype=torch.float64)
    places = torch.arange(block_size)
    for r in range(len(lens)):
        for h in range(heads):
            n = int(lens[r])
            first_entry, kv = r * tables.stride(0), h // (heads // kv_heads)
            largest, total, acc = -math.inf, 0.0, torch.zeros(dim, dtype=torch.float64)
            for logical in range(-(-n // block_size)):
                physical = entries[first_entry + logical]
                valid = logical * block_size + places < n
                begins = k_cache.storage_offset() + physical * block_stride + kv * head_stride
                at = (begins + places * token_stride)[:, None] + torch.arange(dim)
                at = at.clamp(0, len(keys_at) - 1)
                scores = (keys_at[at].double() @ q[r, h].double() * dim**-0.5).where(valid, -math.inf)
                values = values_at[at].double().where(valid[:, None], 0.0)
                new = max(largest, float(scores.max()))
                shrink, weights = math.exp(largest - new), (scores - new).exp()
                total = total * shrink + float(weights.sum())
                acc = acc * shrink + weights @ values
                largest = new
            out[r, h] = acc / total if total else math.nan
    return out


PAGE, ROW, KV_HEAD = "physical * block_stride", "r * tables.stride(0)", "h // (heads // kv_heads)"
ADDED, RESULT = "acc * shrink + weights @ values", "acc / total if total else math.nan"
SOFTMAX_OF_BLOCK = {ADDED: "acc + weights @ values / weights.sum()"}
NO_SCORE = {"where(valid, -math.inf)": "where(valid, 0.0)"}
WALKS = {
    "unmasked-tail": {"places < n": "places < math.inf"},
    "masked-with-zero": (NO_SCORE, {**NO_SCORE, ".where(valid[:, None], 0.0)": ""}),
    "acc-not-rescaled": {"acc * shrink": "acc"},
    "total-not-rescaled": {"total * shrink": "total"},
    "nothing-rescaled": {"acc * shrink": "acc", "total * shrink": "total"},
    "page-id-as-token": {PAGE: "physical * token_stride"},
    "block-stride-times-size": {PAGE: f"{PAGE} * block_size"},
    "strides-mixed": {
        "block_stride, token_stride, head_stride =": "block_stride, head_stride, token_stride ="
    },
    "strides-assumed": {PAGE: "physical * block_size * kv_heads * dim"},
    "wrong-kv-head": ({KV_HEAD: "h % kv_heads"}, {KV_HEAD: "h"}, {KV_HEAD: "0"}),
    "no-scale": {" * dim**-0.5": ""},
    "scale-twice": {"dim**-0.5": "dim**-1.0"},
    "largest-never-moves": {"largest = new": "pass"},
    "keys-as-values": ({"values_at[at]": "keys_at[at]"}, {"keys_at[at]": "values_at[at]"}),
    "row-by-own-blocks": {ROW: "r * -(-n // block_size)"},
    "table-of-request-0": {ROW: "0"},
    "length-of-request-0": {"int(lens[r])": "int(lens[0])"},
    "logical-as-physical": {"entries[first_entry + logical]": "logical"},
    "last-block-lost": {"range(-(-n // block_size))": "range(n // block_size)"},
    "total-of-the-last-block": {"total * shrink + ": ""},
    "not-divided": {RESULT: "acc"},
    "softmax-of-each-block": (
        {**SOFTMAX_OF_BLOCK, RESULT: "acc / -(-n // block_size)"},
        {**SOFTMAX_OF_BLOCK, RESULT: "acc"},
    ),
}
EXERCISE = Solution(
    "p5e1_paged_decode",
    40.0,
    paged_decode={
        "nan-everywhere": When(lambda got, *_: bool(got.isnan().all())),
        "no-maximum": When(_broken),
        "maximum-starts-at-zero": When(_broken),
        "unused-places-read": When(_broken),
        "place-in-32-bits": When(lambda got, *_: isinstance(got, Raised) and got.kind is OverflowError),
        **{
            diagnosis: tuple(
                Gives(changed(walk, slip)) for slip in (slips if isinstance(slips, tuple) else (slips,))
            )
            for diagnosis, slips in WALKS.items()
        },
    },
)
LATE = ("no-maximum", "maximum-starts-at-zero", "unused-places-read", "place-in-32-bits")


@EXERCISE.grader
def grade_decode(paged_decode: Any) -> str:
    def judge(cases: list[Case], what: str, *only: str, play: Callable = interpreted) -> None:
        def show(q: Tensor, k_cache: Tensor, v_cache: Tensor, tables: Tensor, lens: Tensor) -> str:
            block_size, kv_heads, dim = k_cache.shape[1:]
            heads = f"{q.shape[1]} query heads, {kv_heads} KV heads, head_dim {dim}"
            return f"lengths {lens.tolist()}, blocks of {block_size}, {heads}{what}"

        how = dict(play=play, show=show, only=only, tolerance=2e-3, keeps_input=False)
        EXERCISE.judge("paged_decode", paged_decode, cases, reference=walk, **how)

    known = [diagnosis for diagnosis in EXERCISE.mistakes["paged_decode"] if diagnosis not in LATE]
    cases = [
        make_case(0, [11, 5, 8], 4, 4, 2, 8),
        make_case(1, [3], 4, 1, 1, 4),
        make_case(2, [17, 1], 16, 2, 2, 16),
        make_case(3, [9, 6, 7], 2, 6, 2, 4),
        make_case(4, [21, 40], 8, 4, 1, 32),
        make_case(5, [10, 7], 4, 4, 2, 8, apart=True),
    ]
    for (
        case
    ) in cases:  # one by one, since interpreting takes long: the first that goes wrong names the mistake
        judge([case], "", *known)
    unused = make_case(50, [11, 5], 4, 2, 1, 8, unused=math.nan)
    judge([unused], "; NaN in every place that belongs to no request", "unused-places-read")
    for sign, score, diagnosis in ((1, "above 1,000", LATE[0]), (-1, "below -1,000", LATE[1])):
        judge([make_case(60, [9], 4, 2, 1, 8, sign=sign)], f"; every score is {score}", diagnosis)
    far = make_case(70, [11, 5], 4, 2, 1, 8)
    judge([far], "; the blocks lie beyond place 2^31", "place-in-32-bits", play=far_away)
    return (
        "Six batches: block sizes 2 to 16, groups of 1 to 4 heads, a cache with gaps; NaN in every place of others; scores "
        "over 1,000 and under -1,000; blocks that lie beyond 2^31."
    )
