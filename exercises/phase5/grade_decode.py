"""Grader of exercise 5.1: paged decode attention as a Triton kernel, interpreted."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from exercises.grading import Diagnoses, NotYet, expect_equal
from exercises.phase5.launching import body_of, decode_arguments, launch_interpreted

SAYS = {
    "unmasked-tail": "The last block was used to its end. Behind context_len lies what somebody else left there, and your program "
    "let it have a say.",
    "masked-with-zero": "Places behind context_len have a score of 0, and exp(0) is 1: they weigh something. What score has the "
    "weight 0?",
    "acc-not-rescaled": "`total` was scaled down when a larger score turned up, the weighted values were not. Both were measured "
    "against the old maximum.",
    "total-not-rescaled": "The weighted values were scaled down when a larger score turned up, `total` was not. Both were measured "
    "against the old maximum.",
    "nothing-rescaled": "When a larger score turned up in a later block, what had been summed so far stayed as it was. It was measured "
    "against the old maximum.",
    "page-id-as-token": "The number of the physical block was used as if it counted tokens. From one block to the next it is "
    "block_stride numbers.",
    "block-stride-times-size": "The number of the physical block was multiplied by block_stride and by BLOCK_SIZE. A stride is the whole way from one "
    "block to the next.",
    "strides-mixed": "The strides of token and head are exchanged. Read the shape from left to right: block, token, head.",
    "strides-assumed": "This cache is not close together: keys and values of a block lie side by side, so it is further to the next "
    "block than BLOCK_SIZE x kv_heads x HEAD_DIM. Use the strides that you are given.",
    "wrong-kv-head": "The KV head is not the right one. GROUP query heads in a row share one: 0, 1 | 2, 3 | ...",
    "no-scale": "The scores are plain dot products. Each has to be multiplied by `scale`.",
    "scale-twice": "The scores are multiplied by `scale` twice.",
    "largest-never-moves": "Only the last block counts. `largest` stays at -infinity, so `shrink` is 0 in every block, and what was summed before is "
    "thrown away. What has to be remembered for the next block?",
    "keys-as-values": "Keys and values come from the same cache. The weights come from k_cache, what they weigh comes from v_cache.",
    "row-by-own-blocks": "The row of the block table begins at request x the number of this request's blocks. The rows lie further apart: as long as the "
    "longest needs, and that is table_stride.",
    "table-of-request-0": "All programs read the block table of request 0. Each request has a row of its own, and from row to row it "
    "is table_stride.",
    "length-of-request-0": "All programs take the length of request 0. `context_lens` is an address; where is your request's number?",
    "logical-as-physical": "The blocks were read in the order 0, 1, 2, ... That is how the request counts them. Where they lie, only "
    "the block table knows.",
    "last-block-lost": "The tokens of the last, half-filled block are missing. The number of blocks is rounded up.",
    "total-of-the-last-block": "`total` holds the weights of the last block only. It has to be added up over all blocks.",
    "not-divided": "These are the weighted values, not yet divided by the sum of the weights.",
    "softmax-of-each-block": "Each block has a softmax of its own, and these were averaged or added. Blocks have to be weighed against "
    "each other.",
}  # fmt: skip
OTHERS = Diagnoses(
    {
        "nan-everywhere": "Every number is NaN, so it goes wrong with the first block already. There `largest` is -infinity: exp(-infinity - new) is 0, and "
        "what comes of it the other way round? Was everything begun with 0, and `result` set?",
        "unused-places-read": "A place that is nobody's was read and counted with weight 0. But 0 x NaN is NaN: give both loads a mask.",
        "no-maximum": "exp of a large score is larger than any number that fits. Weights are exp(score - largest score so far).",
        "maximum-starts-at-zero": "The largest score starts at 0. When all scores lie far below, every weight is exp of something like -1000, which is 0, "
        "and in the end 0 is divided by 0. Start below every possible score.",
        "wrong-result": "The result is not the attention of these tokens.",
    }
)

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
    """Requests scattered over a pool. Places that are nobody's hold noise, or `unused` if that is NaN."""
    g = torch.Generator().manual_seed(seed)
    blocks = [-(-n // block_size) for n in lens]
    num_blocks = sum(blocks) + 3
    ids = (1 + torch.randperm(num_blocks - 2, generator=g)).tolist()  # block 0 and the last are nobody's
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
        tried += "; NaN in every place that is nobody's"
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
    launch_interpreted(kernel, grid, *arguments, tried=case.tried, **constants)
    return out.double().numpy()


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
    body_of(paged_decode)
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
    return (
        "Six batches beside float64: block sizes 2 to 16, groups of 1 to 4 heads, a cache with gaps; NaN in every place of "
        "others; scores over 1,000 and under -1,000."
    )


def _name_the_mistake(got: np.ndarray, expected: np.ndarray, case: Case) -> None:
    shown, wanted = first_difference(got, expected)
    if np.isnan(got).all():
        raise OTHERS.no("nan-everywhere", case.tried, shown, wanted)
    for mistake, says in SAYS.items():
        for variant in VARIANTS.get(mistake, ("",)):
            with np.errstate(all="ignore"):
                wrong = walk(case, mistake, variant)
            if same(got, wrong) and not same(wrong, expected):
                raise NotYet(mistake, says, case.tried, shown, wanted)
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
