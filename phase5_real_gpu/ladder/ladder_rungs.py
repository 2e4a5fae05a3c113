"""The steps of the decode ladder in order: the launch of each kernel, its loop invariant, and its predicted gain with the reason.

rung = LADDER[1]
out = run_rung(rung, q, k_cache, v_cache, block_tables, context_lens)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor

from phase5_real_gpu.kernels.decode import LOG2_E, DecodePlan, paged_decode, program_slots, tile_tokens
from phase5_real_gpu.kernels.decode_kernel import merge_kernel
from phase5_real_gpu.kernels.kernel_checks import check_attention
from phase5_real_gpu.kernels.split_rule import choose_splits
from phase5_real_gpu.kernels.triton_setup import INTERPRETED, triton
from phase5_real_gpu.ladder import ladder_kernels as kernels

MOST_QUERIES_PER_KV_HEAD = 16  # the rows of the smallest tile of a matrix instruction
ALWAYS_SPLITS = 16  # the number of splits in rung 6, for every shape


@dataclass(frozen=True)
class Work:
    """The work of a rung for one layer, counted from its code.

    Attributes:
        programs: number of programs of the kernel.
        iterations: iterations of the longest program.
        kv_bytes: bytes of keys and values that the programs load, from memory or from a cache.
        block_ids: entries of block tables that the programs load.
    """

    programs: int
    iterations: int
    kv_bytes: int
    block_ids: int


@dataclass(frozen=True)
class Shape:
    """The shape of one decode step. `itemsize`: bytes per number of the cache."""

    context_lens: Sequence[int]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int = 16
    itemsize: int = 2

    @property
    def kv_bytes(self) -> int:
        """Bytes of all keys and values, each counted once: the least that a step must read."""
        return 2 * sum(self.context_lens) * self.num_kv_heads * self.head_dim * self.itemsize

    @property
    def num_blocks(self) -> list[int]:
        return [-(-c // self.block_size) for c in self.context_lens]


# The two extremes of a server: a full batch, and a single long context.
FULL_BATCH = Shape([4096] * 64, num_heads=32, num_kv_heads=8, head_dim=128)
ONE_LONG = Shape([32768], num_heads=32, num_kv_heads=8, head_dim=128)

Launch = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, float, Tensor], None]


@dataclass(frozen=True)
class Rung:
    """A step of the ladder.

    Attributes:
        name: a short name, as in the names of measurements.
        launch: (q, k_cache, v_cache, block_tables, context_lens, scale, out) -> None.
        invariant: the statement that holds after each iteration of its loop.
        should_gain: the predicted gain over the rung before, with the reason; not a measurement.
        work: its work for a shape.
    """

    name: str
    title: str
    launch: Launch
    invariant: str
    should_gain: str
    work: Callable[[Shape], Work]


def run_rung(
    rung: Rung,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    scale: float | None = None,
) -> Tensor:
    """Compute attention of one new token for each request with one rung of the ladder.

    Args:
        q: [B, num_heads, head_dim]. k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim].
        block_tables: [B, most blocks] int32. context_lens: [B] int32, the new token included; 0 gives zeros.
        scale: 1 / sqrt(head_dim) if not given.

    Returns:
        [B, num_heads, head_dim].

    Raises:
        ValueError: shapes or types that do not match. LabError: Triton is not installed.
    """
    check_attention(q, k_cache, v_cache, block_tables, context_lens)
    if q.dtype != k_cache.dtype:
        raise ValueError(
            f"q is {q.dtype}, the cache {k_cache.dtype}: the ladder has no fp8 cache; convert one"
        )
    group = q.shape[1] // k_cache.shape[2]
    if group > MOST_QUERIES_PER_KV_HEAD:
        raise ValueError(
            f"{group} query heads per KV head: the ladder takes 1 to {MOST_QUERIES_PER_KV_HEAD}; use paged_decode"
        )
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    scale = q.shape[2] ** -0.5 if scale is None else scale
    if len(q):
        rung.launch(q.contiguous(), k_cache, v_cache, block_tables, context_lens, scale, out)
    return out


# ---------------------------------------------------------------------- launches


PACKED = dict(ROWS=MOST_QUERIES_PER_KV_HEAD, UPCAST=INTERPRETED)


def _constants(q: Tensor, k_cache: Tensor, tile: int) -> dict[str, int]:
    dims = max(16, triton.next_power_of_2(q.shape[2]))
    group = q.shape[1] // k_cache.shape[2]
    return dict(GROUP=group, BLOCK_SIZE=k_cache.shape[1], D=q.shape[2], DIMS=dims, TILE=tile)


def _launch(kernel, heads, tile, q, k_cache, v_cache, block_tables, context_lens, scale, out, **more) -> None:
    """Launch a kernel of rungs 1 to 5: a program for each request and each of `heads` heads."""
    kernel[len(q), heads](
        q, k_cache, v_cache, block_tables, context_lens, out, scale,
        block_tables.stride(0), *k_cache.stride()[:3],
        **_constants(q, k_cache, tile), **more, num_warps=4, num_stages=3,
    )  # fmt: skip


def _one_head(q, k_cache, *rest) -> None:
    tile = triton.next_power_of_2(k_cache.shape[1])
    _launch(kernels.one_head_kernel, q.shape[1], tile, q, k_cache, *rest)


def _packed(q, k_cache, *rest) -> None:
    tile = max(16, triton.next_power_of_2(k_cache.shape[1]))  # a matrix product takes 16 tokens or more
    _launch(kernels.packed_kernel, k_cache.shape[2], tile, q, k_cache, *rest, **PACKED)


def _tiled(kernel, q, k_cache, *rest, **more) -> None:
    tile = tile_tokens(q.shape[2], q.element_size())
    _launch(kernel, k_cache.shape[2], tile, q, k_cache, *rest, **PACKED, **more)


def _exp2(q, k_cache, v_cache, block_tables, context_lens, scale, out) -> None:
    step = q, k_cache, v_cache, block_tables, context_lens
    _tiled(kernels.hoisted_kernel, *step, scale * LOG2_E, out, BASE_2=True)


def _split(q, k_cache, v_cache, block_tables, context_lens, scale, out) -> None:
    tile = tile_tokens(q.shape[2], q.element_size())
    # The lengths are on the GPU; the table's width bounds them.
    tiles = max(1, -(-block_tables.shape[1] * k_cache.shape[1] // tile))
    partial_out = torch.empty(*q.shape[:2], ALWAYS_SPLITS, q.shape[2], dtype=torch.float32, device=q.device)
    partial_lse = torch.empty(*q.shape[:2], ALWAYS_SPLITS, dtype=torch.float32, device=q.device)
    kernels.split_kernel[len(q), k_cache.shape[2], ALWAYS_SPLITS](
        q, k_cache, v_cache, block_tables, context_lens, partial_out, partial_lse, scale * LOG2_E,
        block_tables.stride(0), *k_cache.stride()[:3], -(-tiles // ALWAYS_SPLITS) * tile,
        **_constants(q, k_cache, tile), **PACKED, num_warps=4, num_stages=3,
    )  # fmt: skip
    merge_kernel[q.shape[:2]](
        out, partial_out, partial_lse, ALWAYS_SPLITS,
        HEAD_DIM=q.shape[2], DIMS=triton.next_power_of_2(q.shape[2]), SPLITS=ALWAYS_SPLITS, num_warps=4,
    )  # fmt: skip


def _direct(q, k_cache, v_cache, block_tables, context_lens, scale, out) -> None:
    longest = block_tables.shape[1] * k_cache.shape[1]
    slots = program_slots(q.shape[1], k_cache, q.dtype)
    plan = _plan(q.shape, longest, k_cache.shape[2], q.element_size(), slots, q.device)
    paged_decode(q, k_cache, v_cache, block_tables, context_lens, scale, plan=plan, out=out)


@lru_cache(maxsize=4)  # as in the engine: one plan serves all layers of a step
def _plan(
    shape: torch.Size, longest: int, num_kv_heads: int, itemsize: int, slots: int, device: torch.device
) -> DecodePlan:
    splits = choose_splits([longest] * shape[0], num_kv_heads, slots, tile_tokens(shape[2], itemsize))
    return DecodePlan.make(*shape, splits, device)


# ---------------------------------------------------------------------- work


def _work_of_blocks(shape: Shape, heads: int | None = None) -> Work:
    """Count the work of a kernel with one block per iteration. heads: programs of a request; None: the KV heads."""
    heads = heads or shape.num_kv_heads
    return Work(
        programs=len(shape.context_lens) * heads,
        iterations=max(shape.num_blocks, default=0),
        kv_bytes=heads // shape.num_kv_heads * shape.kv_bytes,
        block_ids=heads * sum(shape.num_blocks),
    )


def _work_of_tiles(shape: Shape, splits: int = 1, split_tokens: int | None = None) -> Work:
    """Count the work of a kernel with one tile per iteration. split_tokens: the most tokens of a split; None: the whole context."""
    tile = tile_tokens(shape.head_dim, shape.itemsize)
    longest = min(max(shape.context_lens, default=0), split_tokens or 2**62)
    return Work(
        programs=len(shape.context_lens) * shape.num_kv_heads * splits,
        iterations=-(-longest // tile),
        kv_bytes=shape.kv_bytes,
        block_ids=shape.num_kv_heads * sum(shape.context_lens),
    )


def _work_of_splits(shape: Shape) -> Work:
    tile = tile_tokens(shape.head_dim, shape.itemsize)
    tiles = max(1, -(-max(shape.num_blocks, default=0) * shape.block_size // tile))
    return _work_of_tiles(shape, ALWAYS_SPLITS, -(-tiles // ALWAYS_SPLITS) * tile)


# ---------------------------------------------------------------------- the ladder

LADDER: list[Rung] = [
    Rung(
        "head", "one program per query head, one block per iteration", _one_head,
        "after logical block i, largest, total and acc are those of softmax over the tokens of blocks 0 to i",
        "the start. Each query head loads the keys and values of its KV head, also if other query heads load them too",
        lambda shape: _work_of_blocks(shape, shape.num_heads),
    ),
    Rung(
        "packed", "the query heads of a KV head in one program", _packed,
        "the same for each row of the tile; rows beyond the group are zeros and are never stored",
        "up to HQ / HKV times fewer loaded bytes. The time shrinks less, because programs of the first rung found shared "
        "keys in the L2 cache. The matrix multiplications move to the tensor cores, which are idle otherwise, so the padding "
        "of most of the 16 rows costs no time",
        _work_of_blocks,
    ),
    Rung(
        "tile", "64 tokens per iteration, for every block size", partial(_tiled, kernels.tile_kernel),
        "after iteration i, tokens 0 to 64 (i + 1) - 1 are included; the kernel computes the block of each token",
        "4 times fewer iterations with blocks of 16, and 4 times as many bytes in flight in each. An iteration waits for memory "
        "at least once, and the wait is as long for 8 KiB as for 32 KiB",
        _work_of_tiles,
    ),
    Rung(
        "hoisted", "block ids of the next tile loaded one iteration early",
        partial(_tiled, kernels.hoisted_kernel, BASE_2=False),
        "at the top of an iteration, `blocks` holds the block ids of its tokens",
        "the address of the keys no longer depends on a load of the same iteration, so the compiler can load "
        "the next tile's keys while it computes this one: two buffers instead of one (compile_report.py)",
        _work_of_tiles,
    ),
    Rung(
        "exp2", "powers of two, log2(e) folded into the scale", _exp2,
        "scores are in units of ln 2: 2 ** (s log2 e) = e ** s, so the weights are the same",
        "one multiplication less per exponential. No visible gain while memory is the limit; a gain in "
        "prefill, where arithmetic is the limit",
        _work_of_tiles,
    ),
    Rung(
        "split", f"each context in {ALWAYS_SPLITS} splits, merged by a second kernel", _split,
        "the result of a split and the logarithm of its sum of weights are enough to merge splits exactly, in any order",
        f"up to {ALWAYS_SPLITS} times for one long request, whose few programs left most multiprocessors idle. "
        "No gain or a small loss for a full batch: results are written and read again, and there is a second launch",
        _work_of_splits,
    ),
    Rung(
        "direct", "splits chosen by the rule; a single split is stored directly", _direct,
        "with one split the result is final and stored in the output, without a second kernel",
        "on an H100, 43 splits for one request of 32,768 tokens and 2 for 64 of 4,096, instead of 16. 48 or 96 of the latter "
        "would need no merge; the benchmark has no such case. This is `paged_decode`, which the engine uses",
        _work_of_tiles,
    ),
]  # fmt: skip
"""The rungs in order. `compile_report.py` shows the compiler's output for each, `kernel_benchmark.py` times them."""
