"""Three kernels to begin with, one idea each: neighbouring loads, shared memory, and loads that run ahead.

    scale        lanes read numbers that are neighbours in memory, or far apart
    transpose    a tile is transposed through shared memory
    multiply     tiles are fetched while the tensor cores multiply the previous ones

Each has a plain function that launches it. The interpreter checks the result; `compile_report.py` shows the machine code.

Source: NVIDIA, CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory" and "Shared Memory and Memory Banks".
"""

import torch
from torch import Tensor

from phase5_real_gpu.kernels.triton_setup import require_triton, tl, triton

PLACES = 1024  # numbers of a program of `scale`
SIDE = 32  # of the tile of `transpose`
ROWS, COLUMNS, DEPTH = 16, 64, 64  # tiles of `multiply`


@triton.jit
def scale_kernel(x, out, length, STRIDE: tl.constexpr, PLACES: tl.constexpr):
    places = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    exists = places < length
    tl.store(out + places, 2.0 * tl.load(x + places * STRIDE, mask=exists), mask=exists)


def scale(x: Tensor, stride: int = 1) -> Tensor:
    """2 x[::stride], one program per 1,024 results. x: [length * stride] float32. Returns [length]."""
    require_triton()
    out = torch.empty(len(x) // stride, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(len(out), PLACES),)
    scale_kernel[grid](x, out, len(out), STRIDE=stride, PLACES=PLACES, num_warps=4)
    return out


@triton.jit
def transpose_kernel(x, out, SIDE: tl.constexpr):
    rows = tl.arange(0, SIDE)[:, None]
    columns = tl.arange(0, SIDE)[None, :]
    tile = tl.load(x + rows * SIDE + columns)
    tl.store(out + rows * SIDE + columns, tl.trans(tile))


def transpose(x: Tensor) -> Tensor:
    """x.T of one tile, [32, 32]."""
    require_triton()
    out = torch.empty_like(x)
    transpose_kernel[(1,)](x, out, SIDE=SIDE, num_warps=4)
    return out


@triton.jit
def multiply_kernel(a, b, out, depth, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    rows = tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, COLUMNS)[None, :]
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, depth, DEPTH):
        a_tile = tl.load(a + rows * depth + first + tl.arange(0, DEPTH)[None, :])
        b_tile = tl.load(b + (first + tl.arange(0, DEPTH)[:, None]) * COLUMNS + columns)
        acc = tl.dot(a_tile, b_tile, acc)
    tl.store(out + rows * COLUMNS + columns, acc)


def multiply(a: Tensor, b: Tensor, num_stages: int = 3) -> Tensor:
    """a @ b in one program. a: [16, depth], b: [depth, 64], both float16, depth a multiple of 64. Returns float32 [16, 64]."""
    require_triton()
    out = torch.empty(ROWS, COLUMNS, dtype=torch.float32, device=a.device)
    multiply_kernel[(1,)](
        a, b, out, a.shape[1], ROWS=ROWS, COLUMNS=COLUMNS, DEPTH=DEPTH, num_warps=4, num_stages=num_stages
    )
    return out
