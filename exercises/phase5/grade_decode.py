"""Grader of exercise 5.1: paged decode attention as a Triton kernel, interpreted."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from exercises.judging.judge import Raised, When
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


def interpreted(kernel: Any, by_kv_head: bool = False) -> Callable[..., Tensor]:
    """[requests, heads, dim]: what the kernel writes. NaN: it wrote nothing."""

    def play(*case: Tensor) -> Tensor:
        out = torch.full_like(case[0], math.nan)
        grid, arguments, constants = decode_arguments(*case, out, by_kv_head=by_kv_head)
        launch_interpreted(kernel, grid, *arguments, tried="this case", **constants)
        return out

    return play


def far_away(kernel: Any) -> Callable[..., Tensor]:
    """The same in a pool of 8 GiB of keys, of which only the last few blocks are there."""

    def play(q: Tensor, k_cache: Tensor, v_cache: Tensor, tables: Tensor, lens: Tensor) -> Tensor:
        out, stride = torch.full_like(q, math.nan), k_cache.stride(0)
        first = 2**31 // stride
        grid, arguments, constants = decode_arguments(q, k_cache, v_cache, tables + first, lens, out)
        launch_in_far_blocks(kernel, grid, first * stride, *arguments, tried="this case", **constants)
        return out

    return play


def shown(q: Tensor, k_cache: Tensor, v_cache: Tensor, tables: Tensor, lens: Tensor) -> str:
    block_size, kv_heads, dim = k_cache.shape[1:]
    heads = f"{q.shape[1]} query heads, {kv_heads} KV heads, head_dim {dim}"
    return f"lengths {lens.tolist()}, blocks of {block_size}, {heads}"


BROKEN = When(lambda got, *_: isinstance(got, Raised) or not got.isfinite().all() or not got.any())
PAGE, KV_HEAD, MAXIMUM = (
    "physical * block_stride",
    "(head // GROUP)",
    "new = tl.maximum(largest, tl.max(scores, axis=0))",
)
NO_LOAD_MASK = {", mask=is_mine[:, None], other=0.0": ""}
NO_SCORE_MASK = {'        scores = tl.where(is_mine, scores, float("-inf"))\n': ""}
WEIGHED, ADDED = "tl.sum(weights[:, None] * values, axis=0)", "acc = acc * shrink + "
SOFTMAX_OF_BLOCK = {
    f"{ADDED}{WEIGHED}": f"acc += {WEIGHED} / tl.sum(weights, axis=0)",
    MAXIMUM: "new = tl.max(scores, axis=0)",
}
EXERCISE = Solution(
    "p5e1_paged_decode",
    40.0,
    paged_decode={
        "unmasked-tail": {**NO_LOAD_MASK, **NO_SCORE_MASK},
        "masked-with-zero": (
            {'scores, float("-inf"))': "scores, 0.0)"},
            {'scores, float("-inf"))': "scores, 0.0)", **NO_LOAD_MASK},
        ),
        "acc-not-rescaled": {"acc * shrink": "acc"},
        "total-not-rescaled": {"total * shrink": "total"},
        "nothing-rescaled": {"acc * shrink": "acc", "total * shrink": "total"},
        "page-id-as-token": {PAGE: "physical * token_stride"},
        "block-stride-times-size": {PAGE: f"{PAGE} * BLOCK_SIZE"},
        "strides-mixed": {
            "places * token_stride": "places * head_stride",
            f"{KV_HEAD} * head": f"{KV_HEAD} * token",
        },
        "strides-assumed": {PAGE: "physical * BLOCK_SIZE * (tl.num_programs(1) // GROUP) * HEAD_DIM"},
        "wrong-kv-head": (
            {KV_HEAD: "(head % (tl.num_programs(1) // GROUP))"},
            {KV_HEAD: "head"},
            {KV_HEAD: "0"},
        ),
        "no-scale": {"axis=1) * scale": "axis=1)"},
        "scale-twice": {"axis=1) * scale": "axis=1) * scale * scale"},
        "largest-never-moves": {"        largest = new\n": ""},
        "keys-as-values": ({"tl.load(v_cache": "tl.load(k_cache"}, {"tl.load(k_cache": "tl.load(v_cache"}),
        "row-by-own-blocks": {"request * table_stride": "request * tl.cdiv(context_len, BLOCK_SIZE)"},
        "table-of-request-0": {"block_tables + request * table_stride": "block_tables"},
        "length-of-request-0": {"tl.load(context_lens + request)": "tl.load(context_lens)"},
        "logical-as-physical": {PAGE: "logical * block_stride"},
        "last-block-lost": {"tl.cdiv(context_len, BLOCK_SIZE)": "context_len // BLOCK_SIZE"},
        "total-of-the-last-block": {"total * shrink + ": ""},
        "not-divided": {"acc / total": "acc"},
        "softmax-of-each-block": (
            {**SOFTMAX_OF_BLOCK, "acc / total": "acc / tl.cdiv(context_len, BLOCK_SIZE)"},
            {**SOFTMAX_OF_BLOCK, "acc / total": "acc"},
        ),
        "nan-everywhere": (
            {"tl.exp(largest - new)": "tl.exp(new - largest)"},
            When(lambda got, *_: bool(got.isnan().all())),
        ),
        "no-maximum": ({MAXIMUM: "new = 0.0", "tl.exp(largest - new)": "1.0"}, BROKEN),
        "maximum-starts-at-zero": ({'largest = float("-inf")': "largest = 0.0"}, BROKEN),
        "unused-places-read": (
            {"tl.load(v_cache + where, mask=is_mine[:, None], other=0.0)": "tl.load(v_cache + where)"},
            BROKEN,
        ),
        "place-in-32-bits": (
            {".to(tl.int64)": ""},
            {".to(tl.int64)": "", PAGE: f"({PAGE}).to(tl.int64)"},
            When(lambda got, *_: isinstance(got, Raised) and got.kind is OverflowError),
        ),
    },
)
LATE = ("no-maximum", "maximum-starts-at-zero", "unused-places-read", "place-in-32-bits")


@EXERCISE.grader
def grade_decode(paged_decode: Any) -> None:
    def judge(case: Case, what: str, *only: str, play: Callable = interpreted) -> None:
        how = dict(play=play, show=lambda *case: shown(*case) + what, tolerance=2e-3, keeps_input=False)
        EXERCISE.judge("paged_decode", paged_decode, [case], only=only, **how)

    known = [diagnosis for diagnosis in EXERCISE.mistakes["paged_decode"] if diagnosis not in LATE]
    # One by one, since interpreting takes long: the first that goes wrong names the mistake.
    judge(make_case(0, [6, 3], 4, 1, 1, 8), "", *known)
    judge(make_case(0, [11, 5, 8], 4, 4, 2, 8), "", *known)
    judge(make_case(1, [3], 4, 1, 1, 4), "", *known)
    judge(make_case(2, [17, 1], 16, 2, 2, 16), "", *known)
    judge(make_case(3, [9, 6, 7], 2, 6, 2, 4), "", *known)
    judge(make_case(4, [21, 40], 8, 4, 1, 32), "", *known)
    judge(make_case(5, [10, 7], 4, 4, 2, 8, apart=True), "", *known)
    unused = make_case(50, [11, 5], 4, 2, 1, 8, unused=math.nan)
    judge(unused, "; NaN in every place that belongs to no request", "unused-places-read")
    for sign, score, diagnosis in ((1, "above 1,000", LATE[0]), (-1, "below -1,000", LATE[1])):
        judge(make_case(60, [9], 4, 2, 1, 8, sign=sign), f"; every score is {score}", diagnosis)
    far = make_case(70, [11, 5], 4, 2, 1, 8)
    judge(far, "; the blocks lie beyond place 2^31", "place-in-32-bits", play=far_away)
