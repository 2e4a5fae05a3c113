"""Measures the time of a call. On a GPU four mistakes are common:

- *No synchronization.* A call returns as soon as the work is queued. CUDA events in the GPU's queue measure the work.
- *Python in the timed region.* If Python is slower than the kernel, the GPU idles between the first event and the kernel.
- *A warm cache.* A repeated kernel finds its data in the L2 cache. In a model, the keys of another layer come next.
- *The first call*, which compiles.

`triton.testing.do_bench` clears the L2 cache before each run and times with events. Clearing writes 256 MB, which takes about
0.1 ms at 3 TB/s and 0.8 ms on a T4. The Python of a call runs meanwhile; if it takes longer, it is part of the result. Such
calls are timed by `time_in_graph`. Where the data should stay in the cache, torch.utils.benchmark times a whole block of calls.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch.utils.benchmark import Timer

from labkit.machine import synchronize
from phase5_real_gpu.kernels.triton_setup import require_triton

Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """The microseconds of each repeat of a call, in order."""

    repeats_us: tuple[float, ...]

    @property
    def median_us(self) -> float:
        return sorted(self.repeats_us)[len(self.repeats_us) // 2]

    @property
    def low_us(self) -> float:
        return min(self.repeats_us)

    def divided_by(self, calls: int) -> "Timing":
        """The time of one call, if each repeat consisted of `calls` equal calls."""
        return Timing(tuple(t / calls for t in self.repeats_us))


@cache
def _more_than_caches_hold() -> torch.Tensor:
    return torch.ones(32_000_000)


def time_call(fn: Call, device: str, seconds: float = 0.1, least: int = 5, cold: bool = True) -> Timing:
    """Call `fn` repeatedly for about `seconds`, at least `least` times.

    Args:
        cold: empty the caches before each run. Otherwise only calls much longer than a launch can be timed.

    Raises:
        LabError: cold runs on a GPU need Triton.
    """
    fn()
    synchronize(device)
    if not cold:
        timer = Timer("fn()", globals={"fn": fn}, num_threads=torch.get_num_threads())
        blocks = timer.blocked_autorange(min_run_time=max(seconds, least * timer.timeit(1).median))
        return Timing(tuple(1e6 * t for t in blocks.times))
    if device == "cuda":
        require_triton()
        from triton.testing import do_bench

        return Timing(tuple(1e3 * ms for ms in do_bench(fn, rep=1e3 * seconds, return_mode="all")))
    times, until = [], time.perf_counter() + seconds
    while len(times) < least or (time.perf_counter() < until and len(times) < 1000):
        _more_than_caches_hold().sum()  # on all cores, because each core has its own caches
        began = time.perf_counter()
        fn()
        times.append(1e6 * (time.perf_counter() - began))
    return Timing(tuple(times))


def time_in_graph(fn: Call, seconds: float = 0.1) -> Timing:
    """Time `fn` as a CUDA graph replays it, without Python between the kernels. Its data must exceed the L2 cache (96 MB on an RTX 5090)."""
    require_triton()
    from triton.testing import do_bench_cudagraph

    return Timing(tuple(1e3 * ms for ms in do_bench_cudagraph(fn, rep=1e3 * seconds, return_mode="all")))
