"""Which way of computing a linear layer is the fastest on this machine, measured once for each shape and number of rows.

The result is kept (`labkit/measured.py`), so that the next start measures nothing; `lab doctor` counts the shapes. All ways
compute the same numbers but for the order of float32 sums, so a choice changes no more than the last digits.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import psutil
import torch
from torch import Tensor

from labkit.measured import keep_measured, load_measured

ROWS = (1, 4, 8, 16, 64, 256)  # measured; a number between two of them counts as the larger
COLD_BYTES = 64 << 20
ROUNDS, SECONDS = 4, 0.03  # for each number of rows, at least
BUSY = 0.2  # of a core: if other programs take more, the times hold for an hour, and are then measured again
BUSY_HOLDS = 3600.0
# Of one measurement: what would take longer is not measured, and the next smaller number decides.
MOST_PRODUCTS = 1 << 31

Run = Callable[[Tensor], Tensor]
Make = Callable[[], Run]
Times = dict[str, list[float]]  # by way, microseconds for each of ROWS


def measured_times(
    name: str, shape: Sequence[int], dtype: torch.dtype, ways: Mapping[str, Make], copies: int
) -> Times:
    """How long each way takes for a matrix [out, in]; from the file, or measured now.

    Args:
        name: of the number format of the weights. dtype: of the activations.
        ways: each makes something that multiplies, with a copy of the matrix.
        copies: of the matrix, which take turns where reading decides, see `num_copies`.
    """
    key = file_key(name, shape)
    times = _known().get(key)
    until = f"{key}, holds until"
    if not is_complete(times, ways) or is_past(_known().get(until)):
        began, others = time.perf_counter(), seconds_of_others()
        times = measure(ways, shape, dtype, copies)
        quiet = seconds_of_others() - others < BUSY * (time.perf_counter() - began)
        found = {key: times, until: None if quiet else time.time() + BUSY_HOLDS}
        _known().update(found)
        keep_measured(found)
    return times


def is_past(moment: object) -> bool:
    return isinstance(moment, float) and moment < time.time()


def seconds_of_others() -> float:
    """How long other programs have computed, all cores together."""
    cores = psutil.cpu_times()
    return cores.user + cores.system - time.process_time()


def file_key(name: str, shape: Sequence[int]) -> str:
    """With a sum of our kernel's source and of this file: times of others say nothing about them."""
    sources = ("kernels.py", "tiles.py", "choice.py")
    kernel = crc32(b"".join(Path(__file__).with_name(name).read_bytes() for name in sources))
    return f"linear {name} {shape[0]} x {shape[1]}, kernel {kernel:08x}"


@cache
def _known() -> dict[str, Any]:
    return load_measured()


def is_complete(times: object, ways: Mapping[str, Make]) -> bool:
    """Whether the file's entry is what would be measured now. (The file is a user's: it may hold anything.)"""
    if not isinstance(times, dict) or times.keys() != ways.keys():
        return False
    return all(
        isinstance(row, list) and len(row) == len(ROWS) and all(isinstance(t, (int, float)) for t in row)
        for row in times.values()
    )


def measure(ways: Mapping[str, Make], shape: Sequence[int], dtype: torch.dtype, copies: int) -> Times:
    """The ways in turn, and the best round of each: other programs only add time."""
    made = {way: [make() for _ in range(copies)] for way, make in ways.items()}
    (outputs, inputs), found = shape, {way: [] for way in ways}
    for i, rows in enumerate(ROWS):
        if i and rows * outputs * inputs > MOST_PRODUCTS:  # would take too long: as far apart as before
            for times in found.values():
                times.append(times[-1] * rows / ROWS[i - 1])
            continue
        x, best = torch.ones(rows, inputs, dtype=dtype), dict.fromkeys(ways, float("inf"))
        began, rounds = time.perf_counter(), 0
        taken = range(copies if rows <= 16 else min(2, copies))
        while rounds < ROUNDS or time.perf_counter() - began < SECONDS:
            for way, runs in made.items():
                start = time.perf_counter()
                for i in taken:
                    runs[i](x)
                best[way] = min(best[way], (time.perf_counter() - start) / len(taken))
            rounds += 1
        for way, seconds in best.items():
            found[way].append(round(1e6 * seconds, 1))
    return found


def num_copies(nbytes: int) -> int:
    """Copies of a matrix that are together too large for a cache: a step finds its weights in none, either."""
    return max(1, min(16, COLD_BYTES // nbytes))
