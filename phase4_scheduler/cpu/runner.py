"""The CPU backend's runner: a prepared model, and as many threads as the machine has cores free of other programs."""

import time
from functools import cache
from typing import Self

import psutil
import torch
from torch import Tensor

from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import KVStorage
from phase4_scheduler.cpu.backend import prepare
from phase4_scheduler.engine import EngineConfig, ModelRunner, StepBatch

INTERVAL = 0.2  # seconds, at least, between two counts of threads: the system's clocks count in hundredths
MANY_TOKENS = 128


class CPURunner(ModelRunner):
    """Runs a model prepared for this processor."""

    @classmethod
    def create(
        cls, model: Transformer, config: EngineConfig, num_blocks: int, storage: KVStorage | None = None
    ) -> Self:
        # glibc keeps freed arrays of up to the size of the largest that was freed (32 MB at most): so steps need not have the
        # same pages cleared by the system again and again, which took 15% of a step of 16 users.
        torch.empty(31 << 20, dtype=torch.uint8)
        runner = super().create(prepare(model), config, num_blocks, storage)
        runner.threads = threads_of_process()
        return runner

    def execute(self, batch: StepBatch) -> Tensor:
        self.threads.adjust(len(batch.token_ids))
        return super().execute(batch)

    def shutdown(self) -> None:
        self.threads.give_back()
        super().shutdown()


class Threads:
    """Keeps torch's number of threads (our kernels use as many) within the cores that other programs leave.

    The threads of a step meet after each operation, and spin until the last one is there. If another program keeps one of two
    cores busy, one thread always waits for its turn on a core: a step then takes several times as long as with one thread.
    Which tokens a step computes does not change, only the order of some float32 sums.

    Attributes:
        most: threads where no other program needs a core: torch's own number, or what was set since.
        number: what this object has set.
        free: cores that other programs leave, as counted last.
    """

    def __init__(self) -> None:
        self.most = self.number = torch.get_num_threads()
        self.free, self.last = float(self.most), clocks()

    def adjust(self, num_tokens: int) -> None:
        """Before a step of so many tokens."""
        self.notice()
        if time.perf_counter() - self.last[0] >= INTERVAL:
            last, self.last = self.last, clocks()
            seconds, free, own_work = (now - then for now, then in zip(self.last, last, strict=True))
            # Other programs may use the cores while this one is idle. What counts is what they take while it computes.
            if own_work > seconds / 4:
                self.free = (free + own_work) / seconds
        # How much of a core others may take. Beside a server's front end two threads are slower than one in a decode step of
        # 32 requests, and faster with a prompt: there is more to compute between two meetings.
        share = 0.7 if num_tokens >= MANY_TOKENS else 0.3
        torch.set_num_threads(min(self.most, max(1, round(self.free + share - 0.5))))
        self.number = torch.get_num_threads()

    def notice(self) -> None:
        """Another number than this object's was set by the program: that is the most."""
        if torch.get_num_threads() != self.number:
            self.most = self.number = torch.get_num_threads()

    def give_back(self) -> None:
        """After the last step."""
        self.notice()
        torch.set_num_threads(self.most)
        self.number = torch.get_num_threads()


@cache
def threads_of_process() -> Threads:
    """One for all engines of a process: each would take the number that another has set for the program's wish."""
    return Threads()


def clocks() -> tuple[float, float, float]:
    """Seconds: the time; how long the cores of this process were free, added up; how long its own threads have worked.

    Programs with low priority ("nice") count as free, and so does what a virtual machine's host takes ("steal").
    """
    process, times, now = psutil.Process(), psutil.cpu_times(percpu=True), time.perf_counter()
    cores = process.cpu_affinity() if hasattr(process, "cpu_affinity") else ()  # not on macOS
    if not cores or max(cores) >= len(times):  # the list leaves out cores that are switched off
        cores = range(len(times))
    return now, sum(now - times[core].user - times[core].system for core in cores), time.process_time()
