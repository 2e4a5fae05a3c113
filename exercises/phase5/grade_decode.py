"""Graders of exercises 5.1 and 5.7: paged decode attention as a Triton kernel, interpreted, and a slow one made faster."""

import inspect
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from exercises.judging.judge import Exercise, Raised, When
from exercises.judging.sources import handed_out
from exercises.judging.verdict import NotAttempted
from exercises.phase5.launching import body_of, decode_arguments, launch_in_far_blocks, launch_interpreted
from phase5_real_gpu.ladder import count_loads

# ---------------------------------------------------------------------- 5.1 paged decode

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
    for m, kv in zip(memory, caches):
        if math.isnan(unused):
            kept = kv[mine].clone()
            m.fill_(math.nan)
            kv[mine] = kept
    q = 1.5 * torch.randn(len(lens), heads, dim, generator=g)
    if sign:
        q.fill_(sign * 400.0)
        memory[0].abs_().add_(1.0)
    return q, *caches, tables, torch.tensor(lens, dtype=torch.int32)


def interpreted(kernel: Any, *case: Tensor, by_kv_head: bool = False) -> Tensor:
    """[requests, heads, dim]: what the kernel writes. NaN: it wrote nothing."""
    out = torch.full_like(case[0], math.nan)
    grid, arguments, constants = decode_arguments(*case, out, by_kv_head=by_kv_head)
    launch_interpreted(kernel, grid, *arguments, tried="this case", **constants)
    return out


def far_away(
    kernel: Any, q: Tensor, k_cache: Tensor, v_cache: Tensor, tables: Tensor, lens: Tensor
) -> Tensor:
    """The same in a pool of 8 GiB of keys, of which only the last few blocks are there."""
    out, stride = torch.full_like(q, math.nan), k_cache.stride(0)
    first = 2**31 // stride
    grid, arguments, constants = decode_arguments(q, k_cache, v_cache, tables + first, lens, out)
    launch_in_far_blocks(kernel, grid, first * stride, *arguments, tried="this case", **constants)
    return out


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
DECODE = Exercise(
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
        "block-id-as-token": {PAGE: "physical * token_stride"},
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


@DECODE.grader
def grade_decode(paged_decode: Any) -> None:
    def judge(case: Case, what: str, *only: str, play: Callable = interpreted) -> None:
        how = dict(play=play, show=lambda *case: shown(*case) + what, tolerance=2e-3, keeps_input=False)
        DECODE.judge("paged_decode", paged_decode, [case], only=only, **how)

    known = [diagnosis for diagnosis, _ in DECODE.mistakes["paged_decode"] if diagnosis not in LATE]
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


# ---------------------------------------------------------------------- 5.7 faster: its results are judged, then what it loads

NAME = "p5e7_faster_decode"
ACC, TOTAL, SCORES = "acc * shrink[:, None]", "total * shrink", "scores = tl.where(exists[None, :], scores"
FASTER = Exercise(
    NAME,
    40.0,
    group_decode={
        "rows-of-another-group": {"* GROUP": "", "+ tl.arange(0, GROUP)": "* 1 + tl.arange(0, GROUP)"},
        "unmasked-tail": {SCORES: "scores = tl.where(exists[None, :] | True, scores"},
        "acc-not-rescaled": {ACC: "acc"},
        "total-not-rescaled": {TOTAL: "total"},
        "not-divided": {"acc / total[:, None]": "acc"},
        "last-block-lost": {"tl.cdiv(context_len, BLOCK_SIZE)": "context_len // BLOCK_SIZE"},
        "each-head-again": When(lambda got, *_: got["each key is read"] > 1),
        "values-again": When(lambda got, *_: got["each key is read"] == 1 < got["each value is read"]),
        "less-than-a-block": When(lambda got, *_: got["loads of keys per block"] > 1),
    },
)
COUNTED = ("each-head-again", "values-again", "less-than-a-block")


@cache
def given() -> Any:
    """The kernel that a learner is given."""
    return handed_out(NAME, "group_decode")


def words_of(kernel: Any) -> list[str]:
    """Its source; nothing of a kernel that stands in no file or cell."""
    try:
        return inspect.getsource(body_of(kernel)).split()
    except OSError:
        return []


def results(kernel: Any, *case: Tensor) -> Tensor:
    """What the kernel writes, if it is another one than the learner was given."""
    if words_of(kernel) == words_of(given()):
        raise NotAttempted("This is the kernel as it was given to you. It is right, and slow.")
    return interpreted(kernel, *case, by_kv_head=True)


def counted(
    kernel: Any, q: Tensor, k_cache: Tensor, v_cache: Tensor, tables: Tensor, lens: Tensor
) -> dict[str, float]:
    """How often a kernel reads what the contexts hold. Fewer loads than one per block are as good as one."""
    with count_loads(keys=k_cache, values=v_cache) as found:
        interpreted(kernel, q, k_cache, v_cache, tables, lens, by_kv_head=True)
    kv_heads, dim = k_cache.shape[2:]
    needed = 4 * int(lens.sum()) * kv_heads * dim
    blocks = kv_heads * sum(-(-n // k_cache.shape[1]) for n in lens.tolist())
    return {
        "each key is read": found.loaded["keys"] / needed,
        "each value is read": found.loaded["values"] / needed,
        "loads of keys per block": max(1.0, found.loads.count("keys") / blocks),
    }


@FASTER.grader
def grade_faster(group_decode: Any) -> None:
    right = [diagnosis for diagnosis, _ in FASTER.mistakes["group_decode"] if diagnosis not in COUNTED]
    cases = [
        make_case(0, [11, 5], 4, 4, 2, 8),
        make_case(1, [9], 8, 4, 1, 8),
        make_case(2, [6, 3], 2, 2, 2, 4),
    ]
    how = dict(show=shown, tolerance=2e-3, keeps_input=False)
    FASTER.judge("group_decode", group_decode, cases, play=results, only=right, **how)
    FASTER.judge("group_decode", group_decode, cases[:2], play=counted, only=COUNTED, **how)
