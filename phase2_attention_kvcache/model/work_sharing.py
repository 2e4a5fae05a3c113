"""How the threads of a compiled step share its work, without waiting for one that is not there.

A step is a list of **phases**: a norm, a product, attention, ... A phase needs all of the one before it, and is cut into
**parts** that need nothing of each other. The usual way (numba's `prange`) gives each thread its share of a phase and waits
at a **barrier** until all threads have come. But another program may have taken one thread's core away. Then all wait for it,
for milliseconds, in a phase that takes a tenth of one.

Here no part belongs to a thread. Every thread walks through the whole list by itself, and in each phase does this:

    1. Take the next part that nobody has taken, compute it, and publish its result, until none is left.
    2. Wait until all parts are published. If that takes long, somebody has lost the core in the middle of a part:
       compute that part once more.

A thread that is off its core takes nothing, so nobody misses it. When it is back it finds its phase done, passes at once all
those that are done as well, and joins the others. If it was in the middle of a part, somebody else may have done that part.
So it computes in memory of its own, its **scratch**, and whoever is first to claim the part publishes it: writes the result
where the others read it. What a latecomer has computed is thrown away. (By then its inputs may have been overwritten by a
later phase. It computes nonsense from them, and nobody sees it.) Nobody waits for it at the end of the step, either.

**Fetch-and-add.** Two threads that both read "5 parts are taken" and both write 6 would take the same part. Processors have
an instruction that reads a number, adds to it, and lets nobody in between: `fetch_add`. Each thread gets another number.

**The order of memory.** A compiler and a processor may put reads and writes in another order, as long as one thread does not
notice. Another thread would. `fetch_add` and `load` forbid it: what a thread has written before its `fetch_add` is seen by
every thread that has read the new number ("release" and "acquire").

Sources: OpenMP's "dynamic" schedule; the backup tasks of Dean and Ghemawat, "MapReduce" (2004), section 3.6.
"""

import platform
import sys
from collections.abc import Sequence
from typing import NamedTuple

import llvmlite.ir as ir
import numpy as np

from phase2_attention_kvcache.model import numba_setup  # noqa: F401  before numba, see there

from numba import njit, types  # isort: skip
from numba.extending import intrinsic  # isort: skip

LINE = 16  # numbers of 4 bytes in 64 bytes, which a processor keeps together: two counters there slow each other down
PATIENCE = 4_000  # looks at a counter, some 0.2 ms: few parts take longer, and who lost a core waits longer


class Board(NamedTuple):
    """What the threads tell each other. All int32; all but `num_parts` zero at first.

    Attributes:
        num_parts: [phases].
        taken: [phases, LINE], how many parts of each phase are taken (in the first column).
        published: [phases, LINE], how many are there for all to read.
        claimed: [phases, most parts], which have found somebody who publishes them.
    """

    num_parts: np.ndarray
    taken: np.ndarray
    published: np.ndarray
    claimed: np.ndarray


def new_board(num_parts: Sequence[int]) -> Board:
    """num_parts: of each phase."""
    sizes = (LINE, LINE, max(num_parts))
    counters = (np.zeros((len(num_parts), size), np.int32) for size in sizes)
    return Board(np.array(num_parts, np.int32), *counters)


@njit(cache=True)
def next_part(board, phase):
    """A part of a phase for the caller to compute; -1: the phase is done.

    First those that nobody has taken. Then the caller waits, and does what a thread has taken and not published.
    """
    num_parts = board.num_parts[phase]
    part = fetch_add(board.taken, phase, 0, 1)
    if part < num_parts:
        return part
    while not all_published(board, phase):
        for late in range(num_parts):
            if load(board.claimed, phase, late) == 0:
                return late
        give_way()  # whoever publishes the last part may wait for this very core
    return -1


@njit(cache=True)
def all_published(board, phase):
    """Whether a phase is done; asks some time."""
    for _ in range(PATIENCE):
        if load(board.published, phase, 0) == board.num_parts[phase]:
            return True
        pause()
    return False


@njit(cache=True)
def claim(board, phase, part):
    """Whether the caller, who has computed a part, is the one to publish it."""
    return fetch_add(board.claimed, phase, part, 1) == 0


@njit(cache=True)
def note_published(board, phase):
    fetch_add(board.published, phase, 0, 1)


# ------------------------------------------------------------------ what numba does not have


@intrinsic
def fetch_add(typing_context, numbers, row, column, amount):
    """numbers[row, column] += amount, in one go. Returns the number before. numbers: int32 [rows, columns]."""

    def generate(context, builder, signature, args):
        place = place_of(context, builder, signature, args)
        return builder.atomic_rmw("add", place, args[3], "acq_rel")

    return types.int32(numbers, types.intp, types.intp, types.int32), generate


@intrinsic
def load(typing_context, numbers, row, column):
    """numbers[row, column] as it is now in memory, and with it all that was written before it."""

    def generate(context, builder, signature, args):
        return builder.load_atomic(place_of(context, builder, signature, args), "acquire", 4)

    return types.int32(numbers, types.intp, types.intp), generate


def place_of(context, builder, signature, args):
    array = context.make_array(signature.args[0])(context, builder, args[0])
    columns = builder.extract_value(array.shape, 1)
    return builder.gep(array.data, [builder.add(builder.mul(args[1], columns), args[2])])


@intrinsic
def pause(typing_context):
    """Tells the processor that this thread is only waiting: it draws less power, and a twin on the same core goes faster."""

    def generate(context, builder, signature, args):
        if platform.machine().lower() in ("x86_64", "amd64"):
            kind = ir.FunctionType(ir.VoidType(), ())
            builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), kind), ())
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def give_way(typing_context):
    """Lets another program or thread have this core, if one waits for it. (Not on Windows, which has no such function.)"""

    def generate(context, builder, signature, args):
        if sys.platform != "win32":
            kind = ir.FunctionType(ir.IntType(32), ())
            builder.call(ir.Function(builder.module, kind, "sched_yield"), ())
        return context.get_dummy_value()

    return types.void(), generate
