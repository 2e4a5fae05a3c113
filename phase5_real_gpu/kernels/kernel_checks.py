"""Checks of the kernels' arguments, with a one-line message for each mistake.

A GPU does not report "index out of range": it reads some other memory, or the process dies with an error that names no
line. So shapes and types are checked before each launch. The entries of the tables are on the GPU, and reading them
back means waiting for it. They are therefore checked only in the interpreter, where a wrong entry would end the process.
"""

import torch
from torch import Tensor

from phase5_real_gpu.kernels.triton_setup import INTERPRETED, card_problem, require_triton

COMPUTE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FP8 = torch.float8_e4m3fn  # stored only: the attention kernels widen it to the queries' format


def check_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, context_lens: Tensor,
    window: int | None = None, softcap: float | None = None,
) -> None:  # fmt: skip
    """Raise a ValueError unless shapes, types and devices match. Reads the tables in the interpreter only."""
    check_cache(k_cache, v_cache)
    if q.ndim != 3:
        raise ValueError(f"q has shape {list(q.shape)}: give [tokens, num_heads, head_dim]")
    num_kv_heads, head_dim = k_cache.shape[2:]
    num_heads = q.shape[1]
    if q.shape[2] != head_dim:
        raise ValueError(f"q has head_dim {q.shape[2]}, the cache {head_dim}: they must be equal")
    if num_heads % num_kv_heads or not 1 <= num_heads // num_kv_heads <= 64:
        raise ValueError(f"{num_heads} query heads on {num_kv_heads} KV heads: give 1 to 64 for each KV head")
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
    if window is not None and window < 1:
        raise ValueError(f"window is {window}: a token sees at least itself")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap is {softcap}: it must be above 0, or None")
    if INTERPRETED:
        check_tables(block_tables, context_lens, *k_cache.shape[:2])


def check_cache(k_cache: Tensor, v_cache: Tensor) -> None:
    require_triton()
    if k_cache.ndim != 4 or k_cache.shape != v_cache.shape:
        raise ValueError(
            f"k_cache {list(k_cache.shape)} and v_cache {list(v_cache.shape)}: both must be "
            "[num_blocks, block_size, num_kv_heads, head_dim]"
        )
    if k_cache.stride() != v_cache.stride() or k_cache.stride(3) != 1:
        raise ValueError("k_cache and v_cache must lie alike in memory, each head's numbers side by side")
    if k_cache.dtype != v_cache.dtype or k_cache.dtype not in (*COMPUTE_DTYPES, FP8):
        raise ValueError(
            f"k_cache is {k_cache.dtype}, v_cache {v_cache.dtype}: use one of float32, float16, bfloat16, "
            "float8_e4m3fn for both"
        )
    if k_cache.device != v_cache.device:
        raise ValueError(f"k_cache is on {k_cache.device}, v_cache on {v_cache.device}: move one of them")
    if k_cache.device.type == "cpu" and not INTERPRETED:
        raise ValueError("k_cache is on the CPU, and the kernels run on the GPU: move all tensors there")
    if problem := card_problem(k_cache.dtype):
        raise ValueError(problem)
    _, block_size, _, head_dim = k_cache.shape
    for name, value, least in (("head_dim", head_dim, 16), ("block size", block_size, 1)):
        if not least <= value <= 256:
            raise ValueError(f"{name} {value} is out of range: the kernels take {least} to 256")


def check_new_tensor(name: str, tensor: Tensor, cache: Tensor) -> None:
    """q, k or v must have a dtype for arithmetic (the cache's, unless that is fp8) and be on the cache's device."""
    fitting = COMPUTE_DTYPES if cache.dtype == FP8 else (cache.dtype,)
    if tensor.dtype not in fitting:
        raise ValueError(f"{name} is {tensor.dtype}, the cache {cache.dtype}: convert one of them")
    if tensor.device != cache.device:
        raise ValueError(f"{name} is on {tensor.device}, the cache on {cache.device}: move one of them")
    if tensor.stride(-1) != 1:
        raise ValueError(f"{name}: each head's numbers must lie side by side: call .contiguous() on it")


def check_write(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Raise a ValueError unless keys, values, caches and slots match."""
    check_cache(k_cache, v_cache)
    num_blocks, block_size, num_kv_heads, head_dim = k_cache.shape
    needed = (len(slot_mapping), num_kv_heads, head_dim)
    for name, new in (("k", k), ("v", v)):
        if new.shape != needed:
            raise ValueError(f"{name} has shape {list(new.shape)}: slots and cache need {list(needed)}")
        check_new_tensor(name, new, k_cache)
    check_integers("slot_mapping", slot_mapping, k_cache.device)
    if INTERPRETED:
        check_slots(slot_mapping, num_blocks * block_size)


def check_out(out: Tensor | None, q: Tensor) -> Tensor:
    """The tensor for the results: like q, and contiguous. None: a new one."""
    if out is None:
        return torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if out.shape != q.shape or out.dtype != q.dtype or out.device != q.device or not out.is_contiguous():
        given = f"{list(out.shape)} of {out.dtype} on {out.device}"
        raise ValueError(f"out is {given}: give {list(q.shape)} of {q.dtype} on {q.device}, without gaps")
    return out


def check_integers(name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{name} is {tensor.dtype}: it must be int32 or int64")
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}, q on {device}: move one of them")
    if not tensor.is_contiguous() and tensor.ndim == 1:
        raise ValueError(f"{name} must lie in a row in memory: call .contiguous() on it")


def check_tables(block_tables: Tensor, context_lens: Tensor, num_blocks: int, block_size: int) -> None:
    """Read the tables back, and raise a ValueError for the first entry that points outside the pool."""
    for i, (table, context_len) in enumerate(zip(block_tables.tolist(), context_lens.tolist())):
        if context_len < 0:
            raise ValueError(f"context_lens[{i}] is {context_len}: it must be 0 or more")
        needed = -(-context_len // block_size)
        if needed > len(table):
            has = f"its table holds {len(table)}"
            raise ValueError(f"request {i} has {context_len} tokens and needs {needed} blocks, {has}")
        for at, block in enumerate(table[:needed]):
            if not 0 <= block < num_blocks:
                pool = f"the pool has blocks 0 to {num_blocks - 1}"
                raise ValueError(f"block_tables[{i}, {at}] is {block}: {pool}")


def check_slots(slot_mapping: Tensor, num_slots: int) -> None:
    """Read the slots back. -1 means that a token is not stored; a slot may be written only once per step."""
    used = set()
    for i, slot in enumerate(slot_mapping.tolist()):
        if not -1 <= slot < num_slots:
            raise ValueError(f"slot_mapping[{i}] is {slot}: the pool has slots 0 to {num_slots - 1}")
        if slot in used:
            raise ValueError("slot_mapping names a slot twice: the tokens would race for it")
        used |= {slot} - {-1}


def check_query_lens(cu_query_lens: Tensor, context_lens: Tensor, num_tokens: int) -> None:
    """Read the query lengths back: they must rise from 0 to the number of tokens, none longer than its context."""
    starts, lens = cu_query_lens.cpu().tolist(), context_lens.cpu().tolist()
    if starts[0] != 0 or starts[-1] != num_tokens:
        raise ValueError(
            f"cu_query_lens runs from {starts[0]} to {starts[-1]}: from 0 to the {num_tokens} tokens of q"
        )
    for i, context_len in enumerate(lens):
        query_len = starts[i + 1] - starts[i]
        if not 0 <= query_len <= context_len:
            raise ValueError(f"request {i} has {query_len} new tokens in a context of {context_len}")
