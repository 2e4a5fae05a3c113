# %% [markdown]
# # 5.0a A copy in tiles
#
# A kernel runs as a grid of **programs**. Each program reads its number, which selects its part of the work. Here the
# work is a copy of a matrix, and each part is a **tile** of TILE x TILE numbers:
#
#     5 rows, 7 columns, TILE = 4        grid (2, 2)
#
#     program (0, 0)   rows 0-3, columns 0-3        program (0, 1)   rows 0-3, columns 4-6
#     program (1, 0)   row 4, columns 0-3           program (1, 1)   row 4, columns 4-6
#
# The kernel gets a tensor as an **address**, that of its first number. The number in row `r` and column `c` is at `r * stride + c`. The **stride** is
# the distance from one row to the next, and other data may lie between the rows.
#
# `tl.arange(0, 4)` is 0, 1, 2, 3; its length must be a power of two. So the tiles at the edges extend beyond the
# matrix, and a **mask** marks the existing places: elsewhere `tl.load` reads nothing and `tl.store` writes nothing.
#
# | in Triton | means |
# |---|---|
# | `tl.program_id(0)` | the program's number along axis 0 of the grid |
# | `a[:, None] + b[None, :]` | a column plus a row: a table, as in numpy |
# | `tl.load(x + places, mask=m)`, `tl.store(out + places, tile, mask=m)` | read and write at the offsets `places` from an address |
#
# Write the copy. Read and write only inside the matrices.
# %%
import torch

from exercises.grading import check, hint
from phase5_real_gpu.kernels.triton_setup import require_triton, tl, triton

require_triton()  # it exists for Linux only


# %% tags=["answer"]
@triton.jit
def tiled_copy(
    x,  # [rows, columns], a row begins every x_stride numbers
    out,  # [rows, columns], a row begins every out_stride numbers
    rows,
    columns,
    x_stride,
    out_stride,
    TILE: tl.constexpr,
):
    """Copy a tile of x to out. Grid: (rows / TILE, columns / TILE), both rounded up."""
    # BEGIN SOLUTION
    r = tl.program_id(0) * TILE + tl.arange(0, TILE)
    c = tl.program_id(1) * TILE + tl.arange(0, TILE)
    exists = (r < rows)[:, None] & (c < columns)[None, :]
    tile = tl.load(x + r[:, None] * x_stride + c[None, :], mask=exists)
    tl.store(out + r[:, None] * out_stride + c[None, :], tile, mask=exists)
    # END SOLUTION


# %% tags=["check"]
check("p5e0a_tiled_copy", tiled_copy)
# %% [markdown]
# ## What the compiler makes of it
#
# The check interprets your kernel. This cell compiles it for an H100, without a card. A lane loads neighbouring numbers of a row together, at most
# 16 bytes. Why does the tile of 8 x 8 have no such load? And why does no tile have one with 1,000 columns instead of 1,024?
# %% tags=["engine", "compiler"]
from exercises.phase5.compiled import compile_your_kernel

x, out = torch.empty(1024, 1024), torch.empty(1024, 1024)
compile_your_kernel("p5e0a_tiled_copy", tiled_copy, x, out, 1024, 1024, 1024, 1024, TILE=(8, 32))
