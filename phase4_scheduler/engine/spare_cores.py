"""How many threads a step gets on a CPU: as many as there are cores that other programs leave to us.

A step is hundreds of small pieces, and behind each its threads wait for each other. Now another program keeps one of two
cores busy. The system gives our second thread a turn there every few milliseconds, and until then a piece that takes a
tenth of one stands still. So two threads become slower than one: GPT-2's shape, 16 users, two cores, one of them taken:
260 tokens a second with two threads, 490 with one.

So the engine looks around five times a second. The system counts what each core did, and how long we ourselves computed.
What is missing went to others, our own other processes among them. If that is more than half a core, a thread less computes.
The compiled kernels take the same sums in the same order with any number of threads, so tokens stay the same.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import torch

LOOK = 0.2  # seconds from one look to the next; the system counts in hundredths
FORGET = 5  # seconds after which a look says nothing any more


def usable_cores() -> set[int]:
    """Some systems lend a process only some of their cores."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def used_by_others() -> float:
    """For how many seconds other programs have computed on our cores until now, counted from some time in the past."""
    usable = usable_cores()
    cores = [times for core, times in enumerate(psutil.cpu_times(percpu=True)) if core in usable]
    idle = ("idle", "iowait", "guest", "guest_nice")  # a guest's time is in its host's as well
    used = sum(sum(times) - sum(getattr(times, name, 0) for name in idle) for times in cores)
    return used - time.process_time()


class SpareCores:
    """Limits the threads of torch and of the compiled kernels while a step runs. (One engine at a time: torch's number of threads
    belongs to the process.)

    Args:
        used, clock: seconds; replaceable for tests.

    Attributes:
        taken: so many cores were busy for others when we last looked.
    """

    def __init__(
        self, used: Callable[[], float] = used_by_others, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._used, self._clock, self.taken = used, clock, 0.0
        self._looked, self._before = clock(), used()
        self._stepped = self._found = self._looked  # when the last step ended; when `taken` was found

    @contextmanager
    def threads(self) -> Iterator[int]:
        """For a step: yields how many threads it has. Behind it they are as many as before."""
        now = self._clock()
        if now - self._stepped > LOOK:  # we had nothing to do: what others did meanwhile took nothing from us
            self._looked, self._before = now, self._used()
            if now - self._found > FORGET:
                self.taken = 0.0
        elif now - self._looked > LOOK:
            used = self._used()
            self.taken = (used - self._before) / (now - self._looked)
            self._looked, self._before, self._found = now, used, now
        most = torch.get_num_threads()
        number = min(most, max(1, round(max(most, len(usable_cores())) - self.taken)))
        set_threads(number)
        try:
            yield number
        finally:
            set_threads(most)
            self._stepped = self._clock()


def set_threads(number: int) -> None:
    if number == torch.get_num_threads():
        return
    torch.set_num_threads(number)
    if "numba" in sys.modules:  # it takes half a second to import: not for this
        from phase2_attention_kvcache.model.numba_setup import use_threads_of_torch

        use_threads_of_torch()
