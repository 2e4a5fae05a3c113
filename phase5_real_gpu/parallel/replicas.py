"""Ordinary engines behind one front: the other way to use the processes that a `Proxy` uses."""

import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import wait

from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.server.engine_process import Add
from phase5_real_gpu.parallel.engine_worker import Worker, WorkerConfig
from phase5_real_gpu.parallel.proxy import NewTokens


class Replicas:
    """Equal engines; a request goes to the one with the fewest answers under way. (None of them may die.)

    Args:
        configs: one for each; their roles are set here.
    """

    def __init__(self, configs: Sequence[WorkerConfig]) -> None:
        self._configs = [replace(config, role="both") for config in configs]
        self.workers: list[Worker] = []
        self.requests: dict[str, int] = {}  # the engine of each

    def start(self) -> None:
        self.workers = [Worker(config) for config in self._configs]
        for worker in self.workers:
            worker.wait_until_ready()

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()

    def add(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        arrival: float | None = None,
    ) -> None:
        loads = [list(self.requests.values()).count(i) for i in range(len(self.workers))]
        self.requests[request_id] = chosen = loads.index(min(loads))
        arrival = time.perf_counter() if arrival is None else arrival
        self.workers[chosen].send(Add(request_id, list(prompt_token_ids), params, arrival, 0))

    def poll(self, timeout: float | None = None) -> list[NewTokens]:
        """What is new. Waits until an engine says something, `timeout` seconds at most."""
        by_pipe = {worker.pipe: worker for worker in self.workers}
        news: list[NewTokens] = []
        for pipe in wait(list(by_pipe), timeout):
            message = by_pipe[pipe].pipe.recv()
            for output in message.outputs:
                new = NewTokens(
                    output.request_id, output.token_ids, message.ended, output.finish_reason, output.error
                )
                news.append(new)
                if new.finish_reason is not None:
                    del self.requests[new.request_id]
        return news
