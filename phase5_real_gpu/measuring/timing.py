"""How long a call takes. On a GPU there are four ways to get it wrong:

- *No waiting.* A call returns as soon as the work is queued. Events in the GPU's own queue measure its time.
- *Counting Python.* If Python is slower than the kernel, the GPU idles between the first event and the kernel.
- *A warm cache.* A kernel that has just run finds its data in the cache. In a model another layer's keys come next.
- *The first call*, which compiles.

`triton.testing.do_bench` clears the cache before each run and times with events. The GPU needs 0.05 to 0.1 ms for clearing 256 MB;
a call whose Python takes longer than that is counted with its Python, and `time_in_graph` times those. Where the data is to
stay in the cache, torch.utils.benchmark times a whole block of calls. On a CPU a cold call is timed by hand.
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
    """Microseconds of a call: all repeats, in order."""

    repeats_us: tuple[float, ...]

    @property
    def median_us(self) -> float:
        return sorted(self.repeats_us)[len(self.repeats_us) // 2]

    @property
    def low_us(self) -> float:
        return min(self.repeats_us)

    def divided_by(self, calls: int) -> "Timing":
        """The time of one of `calls` equal parts."""
        return Timing(tuple(t / calls for t in self.repeats_us))


@cache
def _more_than_caches_hold() -> torch.Tensor:
    return torch.ones(32_000_000)


def time_call(fn: Call, device: str, seconds: float = 0.1, least: int = 5, cold: bool = True) -> Timing:
    """Call `fn` again and again for about `seconds`, `least` times or more.

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
        _more_than_caches_hold().sum()  # all cores read, because each has caches of its own
        began = time.perf_counter()
        fn()
        times.append(1e6 * (time.perf_counter() - began))
    return Timing(tuple(times))


def time_in_graph(fn: Call, seconds: float = 0.1) -> Timing:
    """Time `fn` as a CUDA graph replays it, without Python in between. Its data must be more than the cache holds."""
    require_triton()
    from triton.testing import do_bench_cudagraph

    return Timing(tuple(1e3 * ms for ms in do_bench_cudagraph(fn, rep=1e3 * seconds, return_mode="all")))
