"""Measures how fast a CPU core reads from each of its memories, and how long a single load takes.

Both are measured on working sets of growing size, each read repeatedly. A set that fits in a cache is read from there. Where the
set outgrows a cache, the curve has a step.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import torch  # isort: skip - first: see phase3_paged_attention/compiled/cpu_kernel.py
from numba import njit

KIB, MIB, GB = 2**10, 2**20, 10**9
LINE = 64  # bytes that a CPU fetches at a time
SYSTEM_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True)
class Point:
    """Measured on a working set of `size` bytes: GB/s of sequential reads, and nanoseconds per dependent load."""

    size: int
    gb_s: float
    jump_ns: float


def cache_sizes(folder: Path = SYSTEM_CACHES) -> dict[str, int]:
    """{"L1": bytes (of the data cache), "L2": ..., "L3": ...} as Linux describes the first core; {} on other systems."""
    sizes: dict[str, int] = {}
    units = {"K": KIB, "M": MIB, "G": 2**30}
    for index in sorted(folder.glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            if kind != "Instruction":
                number = int(size[:-1]) * units[size[-1]] if size[-1] in units else int(size)
                sizes[f"L{int(level)}"] = number
        except (OSError, ValueError, IndexError):
            continue
    return dict(sorted(sizes.items()))


@njit(cache=True)
def _read(numbers, times):
    """The sum of all numbers, `times` times. Integer additions can be reordered, so the compiler vectorizes them."""
    total = 0
    for _ in range(times):
        for i in range(len(numbers)):
            total += numbers[i]
    return total


@njit(cache=True)
def _jump(following, place, jumps):
    """Follow `jumps` links. Each number is the index of the next one, so each load waits for the previous load."""
    for _ in range(jumps):
        place = following[place]
    return place


def sweep_sizes(largest: int, quick: bool = False) -> list[int]:
    """4 KiB to `largest`, two per doubling; with `quick` one per two doublings."""
    sizes, size = [], 4 * KIB
    while size <= largest:
        sizes.append(size)
        if not quick and size * 3 // 2 <= largest:
            sizes.append(size * 3 // 2)
        size *= 4 if quick else 2
    return sizes if sizes[-1] == largest else [*sizes, largest]


def read_speed(size: int, seconds: float = 0.02, runs: int = 3) -> float:
    """GB/s of one core that reads `size` bytes repeatedly; the best of several runs."""
    # torch aligns memory to cache lines. Otherwise a vector load could touch two lines.
    numbers = torch.ones(max(1, size // 8), dtype=torch.int64).numpy()
    _read(numbers, 1)  # compiles, and fills the caches
    began = time.perf_counter()
    _read(numbers, 1)
    once = max(time.perf_counter() - began, 1e-7)
    times = max(1, int(seconds / runs / once))
    best = float("inf")
    for _ in range(runs):
        began = time.perf_counter()
        total = _read(numbers, times)
        best = min(best, time.perf_counter() - began)
    if total != times * len(numbers):
        raise AssertionError("the sum is wrong")  # the compiler must not skip the reading
    return times * numbers.nbytes / best / GB


def circle(size: int, seed: int = 0) -> np.ndarray:
    """A closed chain of links through `size` bytes that visits each cache line once, in random order."""
    step = LINE // 8
    lines = max(2, size // LINE)
    order = np.random.default_rng(seed).permutation(lines)
    following = np.zeros(lines * step, dtype=np.int64)
    following[order * step] = np.roll(order, -1) * step
    return following


def jump_time(size: int, seconds: float = 0.02) -> float:
    """Nanoseconds to load one number whose address depends on the previous load."""
    following = circle(size)
    lines = len(following) * 8 // LINE
    place = _jump(following, 0, min(lines, 300_000))  # fills the caches
    began = time.perf_counter()
    place = _jump(following, place, 2000)
    each = (time.perf_counter() - began) / 2000
    jumps = max(2000, int(seconds / max(each, 1e-9)))
    began = time.perf_counter()
    _jump(following, place, jumps)
    return 1e9 * (time.perf_counter() - began) / jumps


def level_of(size: int, caches: dict[str, int]) -> str | None:
    """The memory that certainly serves a set of this size: the set fills at most half of it, and twice the previous cache (for DRAM three times)."""
    before = 0
    for name, capacity in caches.items():
        if 2 * before <= size <= capacity // 2:
            return name
        if size <= capacity:
            return None
        before = capacity
    return "DRAM" if size >= 3 * before and before else None


def by_level(points: Sequence[Point], caches: dict[str, int]) -> dict[str, Point]:
    """For each level the median of its points (see `level_of`), as one Point with the size of the level."""
    found: dict[str, Point] = {}
    for name in [*caches, "DRAM"]:
        here = [p for p in points if level_of(p.size, caches) == name]
        if here:
            speeds = sorted(p.gb_s for p in here)
            jumps = sorted(p.jump_ns for p in here)
            found[name] = Point(caches.get(name, 0), speeds[len(here) // 2], jumps[len(here) // 2])
    return found
