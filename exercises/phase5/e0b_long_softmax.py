# %% [markdown]
# # 5.0b Softmax of a long row
#
# A program holds its numbers in registers. A row of 100,000 scores does not fit there, so a program processes it in tiles. The softmax of a row is
#
#     exp(x - largest) / total        total = sum of exp(x - largest)
#
# The plain method reads the row three times: for the largest number, for the sum, and for the results. Such a kernel mostly waits for memory. The
# **online softmax** finds `largest` and `total` in one pass. If a tile has a larger number, the sum so far is rescaled to it:
#
#     new     = the larger of `largest` and the largest of the tile        (begin with -infinity)
#     total   = total * exp(largest - new) + sum of exp(tile - new)        (begin with 0)
#     largest = new
#
# By hand, with TILE = 2 and the row 1, 2, 4: the first tile gives largest = 2, total = exp(-1) + 1 = 1.368. The second gives largest = 4,
# total = 1.368 x exp(-2) + 1 = 1.185. A second pass writes the results, so every number is read twice. (Attention needs only one pass: see 5.1.)
#
# | in Triton | means |
# |---|---|
# | `for first in range(0, columns, TILE):` | a loop, as in Python |
# | `tl.load(x + places, mask=m, other=0.0)` | returns `other` where the mask is False |
# | `tl.max(tile, axis=0)`, `tl.sum(tile, axis=0)` | over the numbers of a tile |
# | `tl.maximum(a, b)`, `tl.exp(x)`, `float("-inf")` | the larger number; e to the power of x; -infinity |
#
# Places of the last tile behind the row must get the weight 0: which `other` has that effect?
# %%
import torch

from exercises.grading import check, hint
from phase5_real_gpu.kernels.triton_setup import require_triton, tl, triton

require_triton()  # it exists for Linux only


# %% tags=["answer"]
@triton.jit
def long_softmax(x, out, columns, TILE: tl.constexpr):
    """Softmax of a row. x, out: [rows, columns], the rows close together. Grid: (rows,). Reads each number at most twice."""
    row = tl.program_id(0).to(tl.int64) * columns
    places = tl.arange(0, TILE)
    # BEGIN SOLUTION
    largest, total = float("-inf"), 0.0
    for first in range(0, columns, TILE):
        exists = first + places < columns
        tile = tl.load(x + row + first + places, mask=exists, other=float("-inf"))
        new = tl.maximum(largest, tl.max(tile, axis=0))
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(tile - new), axis=0)
        largest = new
    for first in range(0, columns, TILE):
        exists = first + places < columns
        tile = tl.load(x + row + first + places, mask=exists)
        tl.store(out + row + first + places, tl.exp(tile - largest) / total, mask=exists)
    # END SOLUTION


# %% tags=["check"]
check("p5e0b_long_softmax", long_softmax)
# %% [markdown]
# ## What the compiler makes of it
#
# A tile is held in registers. How do the registers, and the number of programs that fit on a multiprocessor, change with the size of the tile?
# %% tags=["engine", "compiler"]
from exercises.phase5.compiled import compile_your_kernel

x, out = torch.empty(64, 100_000), torch.empty(64, 100_000)
compile_your_kernel("p5e0b_long_softmax", long_softmax, x, out, 100_000, TILE=(1024, 16384))
