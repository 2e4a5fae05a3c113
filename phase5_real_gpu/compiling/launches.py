"""The launches that `compile_report.py` looks at: shapes of Llama-3 8B (32 / 8 heads of 128), blocks of 16.

Each case calls a kernel's ordinary Python function with tensors that have no memory. So what is compiled is
what the engine would launch, with the same tile, warps and stages.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from phase5_real_gpu.compiling.machine_code import LIMITS
from phase5_real_gpu.fused import quantized_gemm
from phase5_real_gpu.fused.store_kernel import store
from phase5_real_gpu.kernels import paged_decode, paged_prefill, write_kv
from phase5_real_gpu.kernels.split_rule import MOST_SPLITS
from phase5_real_gpu.ladder import LADDER, first_kernels, run_rung

NUM_BLOCKS, BATCH, MOST_BLOCKS = 4096, 64, 256


def _empty(*shape: int, dtype: str = "int32") -> Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")


def _attention(
    dtype: str, queries: int, head_dim: int = 128, kv_dtype: str | None = None, index: str = "int32"
) -> tuple[Tensor, ...]:
    """q, k_cache, v_cache, block_tables, context_lens."""
    caches = [_empty(NUM_BLOCKS, 16, 8, head_dim, dtype=kv_dtype or dtype) for _ in range(2)]
    q = _empty(queries, 32, head_dim, dtype=dtype)
    return q, *caches, _empty(BATCH, MOST_BLOCKS, dtype=index), _empty(BATCH, dtype=index)


def _decode(dtype: str, num_splits: int = 1, rule: dict | None = None, **shape) -> None:
    paged_decode(*_attention(dtype, BATCH, **shape), num_splits=num_splits, **(rule or {}))


def _prefill(dtype: str, index: str = "int32", rule: dict | None = None, **shape) -> None:
    *step, context_lens = _attention(dtype, 2048, index=index, **shape)
    paged_prefill(*step, _empty(BATCH + 1, dtype=index), context_lens, **(rule or {}))


def _write(dtype: str, kv_dtype: str | None = None, rotated: bool = False) -> None:
    new = _empty(2048, 8, 128, dtype=dtype)
    caches = (_empty(NUM_BLOCKS, 16, 8, 128, dtype=kv_dtype or dtype) for _ in range(2))
    step = (new, new, *caches, _empty(2048, dtype="int64"))
    if rotated:
        angles = _empty(2048, 64, dtype="float32"), _empty(2048, 64, dtype="float32")
        store(*step, q=_empty(2048, 32, 128, dtype=dtype), angles=angles)
    else:
        (store if kv_dtype else write_kv)(*step)


def _gemm(dtype: str, kind: str, rows: int = 1) -> None:
    groups = 4096 // 32
    codes = _empty(4096, 4096, dtype="int8") if kind == "int8" else _empty(4096, 2048, dtype="uint8")
    scales = _empty(4096, 1, dtype="float32") if kind == "int8" else _empty(4096, groups, dtype="float16")
    zeros = _empty(4096, groups, dtype="uint8") if kind == "int4" else None
    quantized_gemm(_empty(rows, 4096, dtype=dtype), codes, scales, zeros)


def _multiply(dtype: str, stages: int) -> None:
    a, b = (first_kernels.ROWS, 4096), (4096, first_kernels.COLUMNS)
    first_kernels.multiply(_empty(*a, dtype="float16"), _empty(*b, dtype="float16"), stages)


FP8 = dict(kv_dtype="float8_e4m3fn")
VARIANTS: dict[str, Callable[[str], None]] = {
    kernel + f" d{head_dim}" * (head_dim != 128) + " fp8" * fp8 + " window" * window + " softcap" * softcap: partial(
        call, head_dim=head_dim, rule=dict(window=1000 if window else None, softcap=50.0 if softcap else None),
        **(FP8 if fp8 else {}),
    )
    for kernel, call in {
        "decode": _decode,
        "decode split": partial(_decode, num_splits=MOST_SPLITS),
        "prefill": _prefill,
        "decode fp32": lambda dtype, **more: _decode("float32", **more),
        "prefill fp32": lambda dtype, **more: _prefill("float32", **more),
    }.items()
    for head_dim in (64, 80, 96, 128, 256)
    for fp8 in ((False,) if "fp32" in kernel else (False, True))
    for window in (False, True)
    for softcap in (False, True)
    if "fp32" not in kernel or window == softcap  # they compile slowly
}  # fmt: skip
"""Every variant of the attention kernels, with 32 query heads on 8 KV heads. d64: heads of 64 numbers; of 128 otherwise.
fp32: everything in float32."""

CASES: dict[str, Callable[[str], None]] = (
    VARIANTS
    | {
        "decode int64": partial(_decode, num_splits=16, index="int64"),
        "prefill int64": partial(_prefill, index="int64"),
        "write KV": _write,
        "rotate and write KV": partial(_write, rotated=True),
        "write KV fp8": partial(_write, **FP8),
        "GEMM int8": partial(_gemm, kind="int8"),
        "GEMM int4": partial(_gemm, kind="int4"),
        "GEMM int4, 64 rows": partial(_gemm, kind="int4", rows=64),
        "first scale": lambda _: first_kernels.scale(_empty(2**20, dtype="float32")),
        "first scale, stride 32": lambda _: first_kernels.scale(_empty(2**25, dtype="float32"), 32),
        "first transpose": lambda _: first_kernels.transpose(_empty(32, 32, dtype="float32")),
        "first multiply, 1 stage": partial(_multiply, stages=1),
        "first multiply, 3 stages": partial(_multiply, stages=3),
    }
    | {f"ladder, {r.name}": lambda dtype, r=r: run_rung(r, *_attention(dtype, BATCH)) for r in LADDER}
)


def all_variants() -> list[dict[str, str | int]]:
    """Requests for `compile_cases`: every variant for every card that has bfloat16; fp8 where the card has it."""
    return [
        dict(case=case, dtype="bfloat16", capability=capability)
        for capability in LIMITS
        for case in (*VARIANTS, *(case for case in CASES if case.startswith(("write", "rotate", "GEMM"))))
        if capability >= (89 if "fp8" in case else 80)
    ]
