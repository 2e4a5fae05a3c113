"""How long something takes, without fooling yourself. On a GPU there are four ways to get it wrong:

- *No waiting.* A call returns as soon as the work is queued. Events in the GPU's own queue tell its time.
- *Counting Python.* If Python is slower than the kernel, the GPU waits between "start" and the kernel. Here it
  is given something to chew on first (clearing its cache), so that everything is queued when it arrives.
- *A warm cache.* A kernel that has just run finds its data in the cache. In a model another layer's keys come
  next, so caches are emptied before each run.
- *The first call*, which compiles. It is not timed.

Python's own share is measured apart (`launch_us`), since in a real step it may well be what you wait for.

`triton.testing.do_bench` empties the cache by writing to it, which takes bandwidth from the kernel that follows, and
`torch.utils.benchmark` leaves the caches warm; neither tells Python's share. So the clocks here are our own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from labkit.machine import synchronize

Call = Callable[[], object]
MB = 10**6


@dataclass(frozen=True)
class Timing:
    """Microseconds of one call: the median, the lowest and highest of `runs` runs.

    Attributes:
        launch_us: until the call returned to Python. On a CPU that is the call itself.
    """

    median_us: float
    low_us: float
    high_us: float
    runs: int
    launch_us: float

    def divided_by(self, calls: int) -> Timing:
        """The time of one of `calls` equal parts."""
        times = (self.median_us, self.low_us, self.high_us)
        return Timing(*(t / calls for t in times), self.runs, self.launch_us / calls)


class ColdCache:
    """Makes the caches forget: reads more memory than they hold.

    Reads, and does not write: what was written would have to leave the cache while the kernel runs, and
    would take bandwidth from it. On a CPU all cores read, as each has caches of its own.
    """

    def __init__(self, device: str) -> None:
        size = 128 * MB
        if device == "cuda":
            size = max(256 * MB, 4 * torch.cuda.get_device_properties(0).L2_cache_size)
        self.buffer = torch.ones(size // 4, device=device)
        self.clear()
        synchronize(device)
        began = time.perf_counter()
        for _ in range(5):
            self.clear()
        synchronize(device)
        self.clear_us = 1e6 * (time.perf_counter() - began) / 5

    def clear(self) -> None:
        self.buffer.sum()


cold_cache = cache(ColdCache)
"""One for each device: `cold_cache("cuda")`."""


def time_call(fn: Call, device: str, seconds: float = 0.1, least: int = 5, cold: bool = True) -> Timing:
    """Call `fn` again and again for about `seconds`, `least` times or more.

    Args:
        cold: empty the caches before each run.
    """
    for _ in range(3):  # as the timed calls will be: buffers made, threads awake
        if cold:
            cold_cache(device).clear()
        fn()
    synchronize(device)
    return (_time_on_gpu if device == "cuda" else _time_on_cpu)(fn, seconds, least, cold)


def _summary(times_us: Sequence[float], launch_us: float) -> Timing:
    ordered = sorted(times_us)
    return Timing(ordered[len(ordered) // 2], ordered[0], ordered[-1], len(ordered), launch_us)


def _time_on_cpu(fn: Call, seconds: float, least: int, cold: bool) -> Timing:
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < least or (time.perf_counter() < until and len(times) < 1000):
        if cold:
            cold_cache("cpu").clear()
        began = time.perf_counter()
        fn()
        times.append(1e6 * (time.perf_counter() - began))
    timing = _summary(times, 0.0)
    return _summary(times, timing.median_us)


def _time_on_gpu(fn: Call, seconds: float, least: int, cold: bool) -> Timing:
    head_start = cold_cache("cuda")
    launches, whole = [], []
    for _ in range(3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        fn()
        launches.append(1e6 * (time.perf_counter() - began))
        torch.cuda.synchronize()
        whole.append(1e6 * (time.perf_counter() - began))
    launch_us = min(launches)
    # While the GPU clears, Python queues the call. (If the caches are to stay warm, there is no head start,
    # and only calls much longer than a launch may be timed in this way.)
    clears = min(50, 1 + math.ceil(launch_us / head_start.clear_us)) if cold else 0
    runs = int(1e6 * seconds / (min(whole) + clears * head_start.clear_us))
    runs = max(least, min(runs, 500))
    starts, ends = ([torch.cuda.Event(enable_timing=True) for _ in range(runs)] for _ in range(2))
    for start, end in zip(starts, ends):
        for _ in range(clears):
            head_start.clear()
        start.record()
        fn()
        end.record()
    torch.cuda.synchronize()
    return _summary([1000 * s.elapsed_time(e) for s, e in zip(starts, ends)], launch_us)


def time_in_a_row(calls: Sequence[Call], device: str, repeats: int = 10) -> Timing:
    """Time of one call where they follow one another, as the layers of a model do: Python's share included."""
    for fn in calls:
        fn()
    times, launches = [], []
    for _ in range(repeats):
        synchronize(device)
        began = time.perf_counter()
        for fn in calls:
            fn()
        launches.append(1e6 * (time.perf_counter() - began) / len(calls))
        synchronize(device)
        times.append(1e6 * (time.perf_counter() - began) / len(calls))
    return _summary(times, min(launches))


def as_cuda_graph(calls: Sequence[Call]) -> Call:
    """Record the calls once; what comes back starts all of them at once, without Python in between."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compiles, and whatever else happens the first time
        for fn in calls:
            fn()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for fn in calls:
            fn()
    return graph.replay
