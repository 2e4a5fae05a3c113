# %% [markdown]
# # 5.3 Pages for a tile, one round ahead
#
# How many tokens a program fetches at a time is called a **tile**. What suits the card: 16, 64, 128. How many tokens are in a block (a **page**, as
# kernels say) is the memory manager's affair: 8, 16, 256. There is no reason for the two to be equal. A tile may need several
# pages, a page may serve several tiles, and with other sizes a tile may begin in the middle of one.
#
# So each token of the tile finds its own page. The i-th of them is called **lane** i. In a tile that begins at token `start`:
#
#     token    = start + lane
#     logical  = token // block_size        which entry of the block table
#     offset   = token % block_size         which place in the page
#     valid    = token < context_len        in the last tile some lanes have no token
#
# By hand: pages of 4, tiles of 6, 15 tokens. The tile that begins at token 12:
#
#     lane       0   1   2   3   4   5
#     token     12  13  14  15  16  17
#     logical    3   3   3   3   4   4
#     offset     0   1   2   3   0   1
#     valid      x   x   x   -   -   -          the table has 4 entries: there is no entry 4!
#
# **Why a round ahead.** The address of a key comes out of the block table, and the table is in slow memory as well. Who asks for the
# page ids and at once needs them, waits; and only then can ask for the keys. So the page ids of the *next* tile are asked for while this
# tile is worked on ("hoisted" out of its round). When their turn comes, they are there.
#
# The machine below has no compiler that fetches ahead: a walk that asks just in time waits in every tile. Triton's compiler does fetch ahead
# (its **pipeliner** starts the loads of later rounds early), page ids as well as keys. But one hangs on the other, and that chain costs it a
# stage, a round more that has to be kept in flight.
#
#     load the pages of tile 0
#     in each round:  load the pages of the next tile;  fetch the keys of this one, with the pages from before
#
# Write two functions. `tile_places` does the arithmetic for one tile. `walk` goes through a context tile by tile. It is given two things to
# call:
#
# - `load(logical, valid)` gives the page ids of a tile, an array; 0 where `valid` is False, for there nothing is read. Never let it read an entry
#   that the request does not have.
# - `fetch(pages, offsets, valid)` fetches the keys of a tile and computes with them.
#
# Each tile's pages are loaded once. Keep no more than two tiles' pages at a time (a program has few registers). After the last tile there is
# no next one: call `load` with no valid lane, as a kernel does, or do not call it.
# %%
import numpy as np

from exercises.grading import check, hint
from exercises.phase5.tile_machine import LATE, ROUND, TileMachine


# %% tags=["answer"]
def tile_places(
    start: int, tile: int, context_len: int, block_size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(logical, offsets, valid) of the `tile` lanes of the tile that begins at token `start`: integers, integers, bools."""
    # BEGIN SOLUTION
    tokens = start + np.arange(tile)
    return tokens // block_size, tokens % block_size, tokens < context_len
    # END SOLUTION


def walk(load, fetch, context_len: int, block_size: int, tile: int) -> None:
    """Fetch a context of `context_len` tokens (at least one), tile by tile, with page ids loaded one round ahead."""
    # BEGIN SOLUTION
    logical, offsets, valid = tile_places(0, tile, context_len, block_size)
    pages = load(logical, valid)
    for start in range(0, context_len, tile):
        next_logical, next_offsets, next_valid = tile_places(start + tile, tile, context_len, block_size)
        next_pages = load(next_logical, next_valid)
        fetch(pages, offsets, valid)
        pages, offsets, valid = next_pages, next_offsets, next_valid
    # END SOLUTION


# %% [markdown]
# To look at what your walk does (take away the `#`):


# %%
def look(walk) -> None:
    machine = TileMachine(table=[7, 2, 9, 5], block_size=4)
    walk(machine.load, machine.fetch, 15, 4, 6)
    for what, numbers in machine.log:
        print(f"{what:6} {'entries' if what == 'load' else 'slots  '} {numbers}")
    print(
        f"waited {machine.waited} of {machine.now} ticks (a tile's work takes {ROUND}, page ids come after {LATE})"
    )


# look(walk)
# %% tags=["check"]
check("p5e3_page_ids", tile_places, walk)
# %% [markdown]
# The first load is waited for: nothing can be done before it. With pages loaded just in time, *every* tile waits here. In the course's kernel
# this is the fourth rung of the ladder (`hoisted_kernel` in `phase5_real_gpu/ladder/ladder_kernels.py`).
#
# ## Into the engine
#
# In the small engine that you build in this course (`lab mine` runs it) your walk now says which slots are read: tiles of 12 tokens
# over pages of 16, for every request and layer.
# %% tags=["engine"]
from exercises.phase5.into_engine import walk_in_the_engine

walk_in_the_engine(tile_places, walk)
