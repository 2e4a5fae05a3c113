"""Several engines behind one front: each in a process of its own, and a router chooses one for each request.

    API process        HTTP, tokenising, metrics, the router; an `AsyncEngine` for each replica
        |  commands                                  ^  a step
        v                                            |
    engine processes   one for each replica, on its own GPUs if the machine has any

An engine that ends is started again. Another one answers a request whose replica ended before the first token.

Source: vllm/v1/engine/core_client.py (DPAsyncMPClient).
"""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import Any, NamedTuple

import torch

from labkit.errors import LabError
from phase4_scheduler.engine.core import EngineDeadError
from phase4_scheduler.engine.outputs import RequestOutput
from phase4_scheduler.engine.request import Request
from phase4_scheduler.features.kv_events import AllBlocksCleared, KVEvent, block_names
from phase4_scheduler.features.recording import EngineStats
from phase4_scheduler.server.async_engine import AsyncEngine
from phase4_scheduler.server.engine_process import EngineLimits, StepMessage
from phase4_scheduler.server.metrics import Metrics

DEAD = 10**9  # the load of a replica that is being started again: no router likes it


class ReplicaEngine(AsyncEngine):
    """An `AsyncEngine` that starts its process again.

    Args:
        gpus: numbers of the GPUs that its process sees; none: all.
        first: of the first replica, whose metrics page shows these as well.
        observe: is told what happens to the replica's cache: of a router that wants to know.
    """

    ENDED = "the replica that wrote this answer has ended: ask again, others serve on"

    def __init__(
        self,
        number: int,
        gpus: Sequence[str],
        *args: Any,
        first: "ReplicaEngine | None" = None,
        observe: Callable[[int, Sequence[KVEvent]], None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.number, self._gpus, self._first, self._observe = number, gpus, first, observe
        self._restarting: asyncio.Task | None = None

    def _take(self, message: StepMessage) -> None:
        if self._observe is not None:
            self._observe(self.number, message.kv_events)
        super()._take(message)

    def connect(self) -> tuple[Any, Any]:
        if not self._gpus:
            return super().connect()
        before = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(self._gpus)  # as the new process finds it
        try:
            return super().connect()
        finally:
            if before is None:
                del os.environ["CUDA_VISIBLE_DEVICES"]
            else:
                os.environ["CUDA_VISIBLE_DEVICES"] = before

    def make_metrics(self, limits: EngineLimits) -> Metrics:
        if self.metrics is None:
            return Metrics(self.model_name, limits, self.number, self._first and self._first.metrics)
        self.metrics.restarted()
        return self.metrics

    def _die(self) -> None:
        by_itself = self.dead is None  # and not since the server shuts down
        super()._die()
        if by_itself:
            self._restarting = asyncio.create_task(self.restart())

    async def restart(self) -> None:
        """An engine without requests, and with an empty cache. Until it is ready the replica gets no requests."""
        if self._observe is not None:
            self._observe(self.number, [AllBlocksCleared()])
        self._commands = []  # what was not sent was meant for the engine that ended
        self.last_step = StepMessage()
        try:
            await self.start()
        except Exception as error:
            logging.getLogger(__name__).error("replica %d does not come back: %s", self.number, error)
        else:
            self.dead = None
            logging.getLogger(__name__).warning("replica %d is back", self.number)

    def stop(self) -> None:
        if self._restarting is not None:
            self._restarting.cancel()
        super().stop()


class Asked(NamedTuple):
    """What a router sees of a request: the names of its prompt's blocks."""

    hash_ids: Sequence[bytes]


def deal_out_gpus(num_replicas: int, each: int) -> list[list[str]]:
    """The GPUs of each replica; empty lists on a machine without any.

    Raises:
        LabError: too few for all.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    if gpus and len(gpus) < num_replicas * each:
        raise LabError(
            f"{num_replicas} replicas of {each} GPUs, and this machine has {len(gpus)}: choose fewer --replicas, or --device cpu"
        )
    return [gpus[i * each : (i + 1) * each] for i in range(num_replicas)]


class Fleet:
    """Replicas with the face of one `AsyncEngine`. Its limits and its tokenizer are the first one's.

    Args:
        router: its method `choose(asked, loads)` gives a replica, by the answers that each has under way (simulator/routers.py).
        args, options: of each `AsyncEngine`. `max_num_queued_reqs` counts by replica.

    Raises:
        LabError: see `deal_out_gpus`.
    """

    def __init__(self, num_replicas: int, router: Any, *args: Any, **options: Any) -> None:
        observe = getattr(router, "observe", None)
        options["enable_kv_cache_events"] = observe is not None
        self.router, self.loads = router, [0] * num_replicas
        self.front = AsyncEngine(*args, **options)  # never started: it checks and tokenises
        gpus: list[list[str]] = [[]] * num_replicas
        if options.get("device", "auto") != "cpu":
            each = options.get("tensor_parallel_size", 1) * options.get("pipeline_parallel_size", 1)
            gpus = deal_out_gpus(num_replicas, each)
        self.engines: list[ReplicaEngine] = []
        for number, own in enumerate(gpus):
            first = self.engines[0] if self.engines else None
            self.engines.append(ReplicaEngine(number, own, *args, first=first, observe=observe, **options))

    def __getattr__(self, name: str) -> Any:
        """What is the same for all replicas: tokenizer, limits, accept, encode, ..."""
        return getattr(self.front, name)

    async def start(self) -> None:
        """Start all replicas, and wait until they are ready.

        Raises:
            ValueError, LabError: what they could not be started with.
        """
        self.engines[0].tell = self.tell
        await self.engines[0].start()  # the others' metrics are in its registry
        await asyncio.gather(*(engine.start() for engine in self.engines[1:]))
        self.front.limits, self.front.metrics = self.engines[0].limits, self.engines[0].metrics

    def stop(self) -> None:
        for engine in self.engines:
            engine.stop()

    def end_streams(self) -> None:
        for engine in self.engines:
            engine.end_streams()

    @property
    def is_alive(self) -> bool:
        return any(engine.is_alive for engine in self.engines)

    @property
    def dead(self) -> EngineDeadError | None:
        return None if self.is_alive else self.engines[0].dead

    @property
    def last_step(self) -> StepMessage:
        """The state of all replicas together."""
        last = [engine.last_step for engine in self.engines]
        counts = [Counter(asdict(message.stats)) for message in last]
        return StepMessage(
            num_running=sum(message.num_running for message in last),
            num_waiting=sum(message.num_waiting for message in last),
            kv_cache_usage=sum(message.kv_cache_usage for message in last) / len(last),
            stats=EngineStats(**sum(counts, Counter())),
        )

    @property
    def num_generation_tokens(self) -> int:
        return sum(engine.num_generation_tokens for engine in self.engines)

    async def generate(self, request: Request) -> AsyncIterator[RequestOutput]:
        """As `AsyncEngine.generate`. If its replica dies before the first token, another one answers."""
        begun = False
        while True:
            number = self._choose(request)
            self.loads[number] += 1
            try:
                async with aclosing(self.engines[number].generate(request)) as outputs:
                    async for output in outputs:
                        begun = True
                        yield output
                return
            except EngineDeadError:
                if begun or not self.is_alive:
                    raise
            finally:
                self.loads[number] -= 1

    def _choose(self, request: Request) -> int:
        alive = [engine.is_alive for engine in self.engines]
        loads = [load if lives else DEAD for load, lives in zip(self.loads, alive, strict=True)]
        names = block_names(request.prompt_token_ids, self.limits.block_size, request.block_table.salt)
        chosen = self.router.choose(Asked(names), loads)
        return chosen if alive[chosen] else loads.index(min(loads))
