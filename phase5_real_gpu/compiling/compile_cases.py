"""The launches that `compile_report.py` looks at: shapes of Llama-3 8B (32 / 8 heads of 128), pages of 16.

Each case calls a kernel's ordinary Python function with tensors that have no memory. So what is compiled is
what the engine would launch, with the same tile, warps and stages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from phase5_real_gpu.kernels.decode_kernel import paged_decode
from phase5_real_gpu.kernels.prefill_kernel import paged_prefill
from phase5_real_gpu.kernels.write_kv_kernel import write_kv
from phase5_real_gpu.ladder.ladder_rungs import LADDER, Rung, run_rung

NUM_BLOCKS, BATCH, MOST_BLOCKS = 4096, 64, 256


def _empty(*shape: int, dtype: str = "int32") -> Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")


def _caches(dtype: str, num_kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
    shape = (NUM_BLOCKS, 16, num_kv_heads, head_dim)
    return _empty(*shape, dtype=dtype), _empty(*shape, dtype=dtype)


def _decode(
    dtype: str, num_splits: int = 1, num_heads: int = 32, num_kv_heads: int = 8, head_dim: int = 128,
    kv_dtype: str | None = None,
) -> None:  # fmt: skip
    caches = _caches(kv_dtype or dtype, num_kv_heads, head_dim)
    q = _empty(BATCH, num_heads, head_dim, dtype=dtype)
    paged_decode(q, *caches, _empty(BATCH, MOST_BLOCKS), _empty(BATCH), num_splits=num_splits)


def _prefill(
    dtype: str, num_heads: int = 32, num_kv_heads: int = 8, head_dim: int = 128, kv_dtype: str | None = None
) -> None:
    caches = _caches(kv_dtype or dtype, num_kv_heads, head_dim)
    q = _empty(2048, num_heads, head_dim, dtype=dtype)
    paged_prefill(q, *caches, _empty(BATCH, MOST_BLOCKS), _empty(BATCH + 1), _empty(BATCH))


def _write(dtype: str, kv_dtype: str | None = None) -> None:
    new = _empty(2048, 8, 128, dtype=dtype)
    write_kv(new, new, *_caches(kv_dtype or dtype, 8, 128), _empty(2048, dtype="int64"))


def _rung(dtype: str, rung: Rung) -> None:
    q = _empty(BATCH, 32, 128, dtype=dtype)
    run_rung(rung, q, *_caches(dtype, 8, 128), _empty(BATCH, MOST_BLOCKS), _empty(BATCH))


CASES: dict[str, Callable[[str], None]] = {
    "decode": _decode,
    "decode split": partial(_decode, num_splits=16),
    "decode d64": partial(_decode, num_heads=12, num_kv_heads=12, head_dim=64),
    "decode d256": partial(_decode, num_heads=16, num_kv_heads=8, head_dim=256),
    "decode fp8": partial(_decode, kv_dtype="float8_e4m3fn"),
    "decode fp32": lambda dtype: _decode("float32"),
    "prefill": _prefill,
    "prefill d64": partial(_prefill, num_heads=12, num_kv_heads=12, head_dim=64),
    "prefill d256": partial(_prefill, num_heads=16, num_kv_heads=8, head_dim=256),
    "prefill fp8": partial(_prefill, kv_dtype="float8_e4m3fn"),
    "prefill fp32": lambda dtype: _prefill("float32"),
    "write KV": _write,
    "write KV fp8": partial(_write, kv_dtype="float8_e4m3fn"),
} | {f"ladder, {rung.name}": partial(_rung, rung=rung) for rung in LADDER}
