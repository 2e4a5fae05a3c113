"""What the kernels take, and one clear line for what they do not.

A GPU does not say "index out of range". It reads whatever lies there, or the whole process dies with an error
that names no line. So shapes and types are checked before each launch; that costs nothing. What lies *in*
the tables is on the GPU, and looking at it means waiting for it: only `checked=True` does that. In the interpreter
nothing waits, and a wrong entry would end the process: there it is always looked at.
"""

import torch
from torch import Tensor

from phase5_real_gpu.kernels.triton_setup import card_problem, require_triton

HEAD_DIMS = (16, 256)
BLOCK_SIZES = (1, 256)
MOST_QUERIES_PER_KV_HEAD = 64
COMPUTE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CACHE_DTYPES = (*COMPUTE_DTYPES, torch.float8_e4m3fn)


def check_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, context_lens: Tensor
) -> None:
    """Raise a ValueError unless shapes, types and devices fit together. Reads nothing from the GPU."""
    check_cache(k_cache, v_cache)
    if q.ndim != 3:
        raise ValueError(f"q has shape {list(q.shape)}: give [tokens, num_heads, head_dim]")
    num_kv_heads, head_dim = k_cache.shape[2:]
    num_heads = q.shape[1]
    if q.shape[2] != head_dim:
        raise ValueError(f"q has head_dim {q.shape[2]}, the cache {head_dim}: they must be equal")
    if num_heads % num_kv_heads or not 1 <= num_heads // num_kv_heads <= MOST_QUERIES_PER_KV_HEAD:
        raise ValueError(
            f"{num_heads} query heads on {num_kv_heads} KV heads: each KV head serves the same number, "
            f"1 to {MOST_QUERIES_PER_KV_HEAD}"
        )
    check_new_tensor("q", q, k_cache)
    if block_tables.ndim != 2 or context_lens.ndim != 1 or len(block_tables) != len(context_lens):
        raise ValueError(
            f"block_tables {list(block_tables.shape)} and context_lens {list(context_lens.shape)}: give "
            "[requests, most blocks] and [requests]"
        )
    for name, tensor in (("block_tables", block_tables), ("context_lens", context_lens)):
        check_integers(name, tensor, q.device)
    if block_tables.shape[1] and block_tables.stride(1) != 1:
        raise ValueError("block_tables must lie row by row in memory: call .contiguous() on it")


def check_rule(window: int | None, softcap: float | None) -> None:
    if window is not None and window < 1:
        raise ValueError(f"window is {window}: a token sees at least itself")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap is {softcap}: it must be above 0, or None")


def check_cache(k_cache: Tensor, v_cache: Tensor) -> None:
    require_triton()
    if k_cache.ndim != 4 or k_cache.shape != v_cache.shape:
        raise ValueError(
            f"k_cache {list(k_cache.shape)} and v_cache {list(v_cache.shape)}: both must be "
            "[num_blocks, block_size, num_kv_heads, head_dim]"
        )
    if k_cache.stride() != v_cache.stride() or k_cache.stride(3) != 1:
        raise ValueError("k_cache and v_cache must lie alike in memory, each head's numbers side by side")
    if k_cache.dtype != v_cache.dtype or k_cache.dtype not in CACHE_DTYPES:
        raise ValueError(
            f"k_cache is {k_cache.dtype}, v_cache {v_cache.dtype}: use one of float32, float16, bfloat16, "
            "float8_e4m3fn for both"
        )
    if k_cache.device != v_cache.device:
        raise ValueError(f"k_cache is on {k_cache.device}, v_cache on {v_cache.device}: move one of them")
    if problem := card_problem(k_cache.dtype):
        raise ValueError(problem)
    block_size, head_dim = k_cache.shape[1], k_cache.shape[3]
    for name, value, (least, most) in (
        ("head_dim", head_dim, HEAD_DIMS),
        ("block size", block_size, BLOCK_SIZES),
    ):
        if not least <= value <= most:
            raise ValueError(f"{name} {value} is out of range: the kernels take {least} to {most}")


def check_new_tensor(name: str, tensor: Tensor, cache: Tensor) -> None:
    """q, k or v: of a number format that computes, the cache's own unless that is fp8, on its device."""
    fitting = COMPUTE_DTYPES if cache.dtype == torch.float8_e4m3fn else (cache.dtype,)
    if tensor.dtype not in fitting:
        raise ValueError(f"{name} is {tensor.dtype}, the cache {cache.dtype}: convert one of them")
    if tensor.device != cache.device:
        raise ValueError(f"{name} is on {tensor.device}, the cache on {cache.device}: move one of them")
    if tensor.stride(-1) != 1:
        raise ValueError(f"{name}: each head's numbers must lie side by side: call .contiguous() on it")


def check_out(out: Tensor, q: Tensor) -> None:
    """Where results are put: like q, and in one piece."""
    if out.shape != q.shape or out.dtype != q.dtype or out.device != q.device or not out.is_contiguous():
        raise ValueError(
            f"out is {list(out.shape)} of {out.dtype} on {out.device}: give {list(q.shape)} of {q.dtype} on "
            f"{q.device}, without gaps"
        )


def check_integers(name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{name} is {tensor.dtype}: it must be int32 or int64")
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}, q on {device}: move one of them")
    if not tensor.is_contiguous() and tensor.ndim == 1:
        raise ValueError(f"{name} must lie in a row in memory: call .contiguous() on it")


# ---------------------------------------------------------------------- what lies in the tables


def check_tables(block_tables: Tensor, context_lens: Tensor, num_blocks: int, block_size: int) -> None:
    """Read the tables back, and raise a ValueError for the first entry that points outside the pool."""
    tables, lens = block_tables.cpu(), context_lens.cpu().tolist()
    for i, context_len in enumerate(lens):
        if context_len < 0:
            raise ValueError(f"context_lens[{i}] is {context_len}: it must be 0 or more")
        needed = -(-context_len // block_size)
        if needed > tables.shape[1]:
            raise ValueError(
                f"request {i} has {context_len} tokens and needs {needed} blocks, its table holds "
                f"{tables.shape[1]}: make the table wider"
            )
        for logical, block in enumerate(tables[i, :needed].tolist()):
            if not 0 <= block < num_blocks:
                raise ValueError(
                    f"block_tables[{i}, {logical}] is {block}: the pool has blocks 0 to {num_blocks - 1}"
                )


def check_slots(slot_mapping: Tensor, num_slots: int) -> None:
    """Read the slots back. -1 means that a token is not stored; a slot may be written once a step."""
    slots = slot_mapping.cpu()
    outside = (slots < -1) | (slots >= num_slots)
    if outside.any():
        i = int(outside.nonzero()[0])
        raise ValueError(
            f"slot_mapping[{i}] is {int(slots[i])}: the pool has slots 0 to {num_slots - 1} (-1: none)"
        )
    used = slots[slots >= 0]
    if len(used.unique()) < len(used):
        raise ValueError(
            "slot_mapping names a slot twice: which token's keys it holds would be a matter of chance"
        )


def check_query_lens(cu_query_lens: Tensor, context_lens: Tensor, num_tokens: int) -> None:
    """Read the query lengths back: they rise from 0 to the number of tokens, none longer than its context."""
    starts, lens = cu_query_lens.cpu().tolist(), context_lens.cpu().tolist()
    if starts[0] != 0 or starts[-1] != num_tokens:
        raise ValueError(
            f"cu_query_lens runs from {starts[0]} to {starts[-1]}: from 0 to the {num_tokens} tokens of q"
        )
    for i, context_len in enumerate(lens):
        query_len = starts[i + 1] - starts[i]
        if not 0 <= query_len <= context_len:
            raise ValueError(
                f"request {i} has {query_len} new tokens and a context of {context_len}: the context counts "
                "the new ones"
            )
