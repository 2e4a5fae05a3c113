"""Several engines behind one front: each is a Ray actor, and a router chooses one for each request.

Ray starts the actors, carries messages to them, sees them die and starts them again. What is left to do here: choose a
replica, and choose again if it dies before the first token of an answer.

    API process      HTTP, tokenising, metrics, the router; an `AsyncEngine` for each replica
        |  commands                                  ^  a step
        v                                            |
    Ray actors       `Replica`: an engine core in a process of its own

On one machine nothing has to be prepared. On several start Ray on each (`ray start`, see docs.ray.io), and give the API
process the address in RAY_ADDRESS. (A replica on another machine has another clock, so the times within its steps are
shifted in the metrics. What clients wait for is measured here.)

Source: vllm/v1/engine/core_client.py (DPAsyncMPClient) for the shape; docs.ray.io, "Actor fault tolerance".
"""

import asyncio
import logging
import os
import queue
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayActorError, RayTaskError

from labkit.errors import LabError
from phase4_scheduler.engine.core import EngineCore, EngineDeadError
from phase4_scheduler.engine.outputs import RequestOutput
from phase4_scheduler.engine.request import Request
from phase4_scheduler.features.kv_events import AllBlocksCleared, KVEvent, block_names
from phase4_scheduler.features.recording import EngineStats
from phase4_scheduler.server.async_engine import AsyncEngine
from phase4_scheduler.server.engine_process import (
    Add,
    EngineArgs,
    EngineLimits,
    Finish,
    StepMessage,
    StoredBytes,
    turn,
)
from phase4_scheduler.server.metrics import Metrics

DEAD = 10**9  # the load of a replica that is being started again: no router likes it


@ray.remote(max_restarts=-1)
class Replica:
    """One engine. Ray starts it again whenever its process ends, and then it is empty."""

    def __init__(self) -> None:
        self.core: EngineCore | None = None

    @ray.method(max_task_retries=-1)  # asked for while Ray is starting it again: wait
    def start(self, args: EngineArgs) -> EngineLimits:
        self.core = core = args.start()
        self.stored = StoredBytes.of(core) if args.enable_mfu_metrics else None
        return EngineLimits.of(core)

    def turn(self, commands: list[Add | Finish]) -> StepMessage:
        if self.core is None:
            raise RuntimeError("this replica was started again, and knows nothing of its requests")
        return turn(self.core, commands, self.stored)


class ActorLink:
    """A replica as an engine process with its pipe: commands go in, steps come out."""

    exitcode = "see Ray's logs"

    def __init__(self, actor: Any, args: EngineArgs) -> None:
        self.actor = actor
        self._limits = actor.start.remote(args)
        self._commands: queue.SimpleQueue[list[Add | Finish] | None] = queue.SimpleQueue()
        self._busy = False

    def send(self, commands: list[Add | Finish]) -> None:
        self._commands.put(commands)

    def recv(self) -> EngineLimits | Exception | StepMessage:
        """First what `start` gave, then a step after the other.

        Raises:
            EOFError: the replica is gone.
        """
        if self._limits is not None:
            limits, self._limits = self._limits, None
            try:
                return ray.get(limits)
            except RayTaskError as error:
                return error.cause
        commands: list[Add | Finish] = []
        while not self._commands.empty() or not (commands or self._busy):
            new = self._commands.get()
            if new is None:
                raise EOFError
            commands += new
        try:
            message = ray.get(self.actor.turn.remote(commands))
        except (RayActorError, RayTaskError) as error:
            raise EOFError from error
        self._busy = bool(message.num_running or message.num_waiting)
        return message

    def is_alive(self) -> bool:
        return True  # until `recv` says otherwise

    def terminate(self) -> None:
        ray.kill(self.actor)
        self._commands.put(None)

    def join(self, timeout: float) -> None:
        pass

    def kill(self) -> None:
        pass  # `terminate` has


class ReplicaEngine(AsyncEngine):
    """An `AsyncEngine` whose engine is an actor.

    Args:
        first: of the first replica, whose metrics page shows these as well.
        observe: is told what happens to the replica's cache: of a router that wants to know.
    """

    ENDED = "the replica that wrote this answer has ended: ask again, others serve on"

    def __init__(
        self,
        actor: Any,
        number: int,
        *args: Any,
        first: "ReplicaEngine | None" = None,
        observe: Callable[[int, Sequence[KVEvent]], None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.actor, self.number, self._first, self._observe = actor, number, first, observe

    def _take(self, message: StepMessage) -> None:
        if self._observe is not None:
            self._observe(self.number, message.kv_events)
        super()._take(message)

    def connect(self) -> tuple[ActorLink, ActorLink]:
        link = ActorLink(self.actor, self._args)
        return link, link

    def make_metrics(self, limits: EngineLimits) -> Metrics:
        if self.metrics is None:
            return Metrics(self.model_name, limits, self.number, self._first and self._first.metrics)
        self.metrics.restarted()
        return self.metrics

    async def restart(self) -> None:
        """Wait until Ray has the actor back: an engine without requests, and with an empty cache."""
        if self._observe is not None:
            self._observe(self.number, [AllBlocksCleared()])
        self._commands = []  # what was not sent was meant for the engine that ended
        self.last_step = StepMessage()
        await self.start()
        self.dead = None
        logging.getLogger(__name__).warning("replica %d is back", self.number)


class Asked(NamedTuple):
    """What a router sees of a request: the names of its prompt's blocks."""

    hash_ids: Sequence[bytes]


def check_address(address: str) -> None:
    """Raises LabError if no process listens at "host:port". (Ray itself would try for minutes.)"""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        raise LabError(
            f"no Ray at RAY_ADDRESS={address} ({error}): start it there (ray start --head), or unset RAY_ADDRESS"
        ) from None


class RayFleet:
    """Replicas with the face of one `AsyncEngine`. Its limits and its tokenizer are the first one's.

    Args:
        router: its method `choose(asked, loads)` gives a replica, by the answers that each has under way (simulator/routers.py).
        args, options: of each `AsyncEngine`. `max_num_queued_reqs` counts by replica.
    """

    def __init__(self, num_replicas: int, router: Any, *args: Any, **options: Any) -> None:
        if options.get("kv_events_config"):
            raise LabError(
                "KV events of several replicas would leave from one endpoint: leave out --kv-events-config or --replicas"
            )
        if (observe := getattr(router, "observe", None)) is not None:
            options["kv_events_config"] = {"enable_kv_cache_events": True, "publisher": "null"}
        self.router, self._make = router, (args, options)
        self._of_replicas = {"observe": observe}
        self._num_gpus = int(options.get("device", "auto") != "cpu")
        self.front = AsyncEngine(*args, **options)  # never started: it checks and tokenises
        self.engines: list[ReplicaEngine] = []
        self.loads = [0] * num_replicas
        self._starting: dict[int, asyncio.Task] = {}  # by replica

    def __getattr__(self, name: str) -> Any:
        """What is the same for all replicas: tokenizer, limits, accept, encode, ..."""
        return getattr(self.front, name)

    async def start(self) -> None:
        """Start all replicas, and wait until they are ready.

        Raises:
            ValueError, LabError: what they could not be started with; no Ray under RAY_ADDRESS.
        """
        if ":" in (address := os.environ.get("RAY_ADDRESS", "")):
            check_address(address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would tell its makers of each start
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        except (ConnectionError, RuntimeError) as error:
            raise LabError(f"Ray cannot be reached ({error}): start it, or unset RAY_ADDRESS") from None
        args, options = self._make
        gpus = self._num_gpus if ray.cluster_resources().get("GPU") else 0
        for number in range(len(self.loads)):
            # Ray spreads what takes a share of a processor; what takes none it may put on one machine.
            actor = Replica.options(num_cpus=0.1, num_gpus=gpus, scheduling_strategy="SPREAD").remote()
            first = self.engines[0] if self.engines else None
            self.engines.append(
                ReplicaEngine(actor, number, *args, first=first, **self._of_replicas, **options)
            )
        await self.engines[0].start()  # the others' metrics are in its registry
        await asyncio.gather(*(engine.start() for engine in self.engines[1:]))
        self.front.limits, self.front.metrics = self.engines[0].limits, self.engines[0].metrics

    def stop(self) -> None:
        for task in self._starting.values():
            task.cancel()
        for engine in self.engines:
            engine.stop()
        ray.shutdown()

    def end_streams(self) -> None:
        """As `AsyncEngine.end_streams`, of each replica: the front was never started."""
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
            engine = self.engines[number]
            self.loads[number] += 1
            try:
                async with aclosing(engine.generate(request)) as outputs:
                    async for output in outputs:
                        begun = True
                        yield output
                return
            except EngineDeadError:
                self._start_again(engine)
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

    def _start_again(self, engine: ReplicaEngine) -> None:
        """Ray has the actor back soon. Until then it gets no requests."""
        number = engine.number
        if not engine.is_alive and number not in self._starting:
            self._starting[number] = task = asyncio.create_task(engine.restart())
            task.add_done_callback(lambda _: self._starting.pop(number, None))
