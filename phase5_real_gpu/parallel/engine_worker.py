"""An engine in a process of its own: one that computes prompts for others, one that writes answers, or one that does both."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from labkit.errors import LabError
from labkit.interrupts import end_with_parent
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import KVStorage, PagedKVCache
from phase4_scheduler.assembly.build import build_core, default_num_blocks
from phase4_scheduler.engine import EngineConfig, EngineCore
from phase4_scheduler.server.engine_process import Add, EngineArgs, Finish, turn
from phase5_real_gpu.parallel.block_transfer import BlockServer, KVLayout
from phase5_real_gpu.parallel.shared_memory import create_shared_memory, new_name
from phase5_real_gpu.parallel.shared_memory_connector import LEASE_SECONDS, DecodeConnector, PrefillConnector

PAUSE = 0.001  # seconds between two looks, where only transfers are under way


@dataclass(frozen=True)
class WorkerConfig:
    """An engine process.

    Attributes:
        model, dtype: as for `load_model`.
        settings: fields of `EngineConfig`.
        role: "prefill", "decode", or "both" for an ordinary engine.
        lease_seconds: how long a prefill side keeps blocks for others.
        peer: of a decode side: the address of a prefill side to begin with.
        core: one of `own_cores()`, to stay on with one thread; None: wherever the machine wants.
        memory: name of a prefill side's shared memory; None: a new one.
    """

    model: str
    dtype: str = "bfloat16"
    settings: dict[str, Any] = field(default_factory=dict)
    role: str = "both"
    lease_seconds: float = LEASE_SECONDS
    peer: str | None = None
    core: int | None = None
    memory: Path | None = None


@dataclass(frozen=True)
class Ready:
    """A worker's first message. A prefill side says where it listens."""

    address: str | None = None


def prefill_core(
    model: Transformer,
    config: EngineConfig,
    lease_seconds: float = LEASE_SECONDS,
    memory: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[EngineCore, Path]:
    """An engine whose cache lies in shared memory, and the name of that memory. Raises LabError: it is full.

    Args:
        memory: a name for it; None: a new one.
        clock: of its leases, in seconds.
    """
    config = _sized(model, config)
    layout = KVLayout.of(model, config.block_size)
    path, memory_of_blocks = create_shared_memory(layout.block_bytes * config.num_blocks, memory)
    sizes = (config.num_blocks, config.block_size, model.dtype, model.device)
    cache = PagedKVCache(
        model.config, *sizes, storage=KVStorage(model.config, *sizes, memory=memory_of_blocks)
    )
    connector = PrefillConnector(BlockServer(layout, path, config.num_blocks), lease_seconds, clock)
    return build_core(model, config, kv_cache=cache, kv_connector=connector), path


def decode_core(
    model: Transformer, config: EngineConfig, clock: Callable[[], float] = time.monotonic
) -> EngineCore:
    """An engine that reads blocks of prefill sides into its own cache."""
    config = _sized(model, config)
    sizes = (config.num_blocks, config.block_size, model.dtype, model.device)
    cache = PagedKVCache(model.config, *sizes)
    connector = DecodeConnector(KVLayout.of(model, config.block_size), cache.storage.data, clock)
    return build_core(model, config, kv_cache=cache, kv_connector=connector)


def _sized(model: Transformer, config: EngineConfig) -> EngineConfig:
    return replace(config, num_blocks=config.num_blocks or default_num_blocks(model, config))


# ---------------------------------------------------------------------- the process


def own_cores() -> list[int]:
    """CPU cores that this process may use; empty where no process can be pinned to a core (all but Linux)."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def pin(core: int) -> None:
    """Let this process stay on one core, with one thread. Raises LabError: it may not use that core."""
    if core not in own_cores():
        raise LabError(f"this process may not use core {core}: take one of {own_cores()}")
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)


def run_worker(pipe: Connection, config: WorkerConfig) -> None:
    """The process, from its start to its end: until the pipe is closed. Its first message is `Ready`, or what went wrong."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches all processes; the first one decides
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # unwinds, which removes the shared memory
    end_with_parent()
    config = replace(config, memory=config.memory or new_name())
    try:
        _run(pipe, config)
    finally:
        config.memory.unlink(missing_ok=True)


def _run(pipe: Connection, config: WorkerConfig) -> None:
    address = None
    try:
        if config.core is not None:
            pin(config.core)
        args = EngineArgs(config.model, config.dtype, "cpu", config.settings)
        model, engine_config, features = args.load()
        if config.role == "prefill":
            core, _ = prefill_core(model, engine_config, config.lease_seconds, config.memory)
            address = core.scheduler.connector.server.address
        elif config.role == "decode":
            core = decode_core(model, engine_config)
            if config.peer is not None:
                core.scheduler.connector.connect(config.peer)
        else:
            core = build_core(model, engine_config, features=features)
    except (LabError, ValueError, OSError) as error:
        pipe.send(error if isinstance(error, LabError) else LabError(str(error)))
        return
    try:
        pipe.send(Ready(address))
        serve(pipe, core)
    except (EOFError, ConnectionError):
        pass  # the proxy is gone
    finally:
        if config.role != "both":
            core.scheduler.connector.shutdown()


def serve(pipe: Connection, core: EngineCore) -> None:
    """Obey, step, and say what came out. A question in place of a list of commands is answered with the books."""
    scheduler = core.scheduler
    while True:
        commands: list[Add | Finish] = []
        while pipe.poll() or not (commands or scheduler.has_requests):
            message = pipe.recv()
            if message == "books?":
                pipe.send(books(core))
            else:
                commands += message
        steps = core.num_steps
        done = turn(core, commands)
        if done.outputs or done.refused:
            pipe.send(done)
        if core.num_steps == steps and not done.outputs:
            pipe.poll(PAUSE)  # nothing to compute: blocks are on their way, or are kept for others


def books(core: EngineCore) -> dict[str, Any]:
    """What a worker can say of itself: blocks in use, what was loaded, leases."""
    core.block_manager.check_integrity()
    report = {
        "blocks_in_use": core.block_manager.num_blocks - 1 - core.block_manager.num_free_blocks,
        "num_preemptions": core.stats.num_preemptions,
        "num_steps": core.num_steps,
        "hit_tokens": core.stats.prefix_hits,
    }
    connector = getattr(core.scheduler, "connector", None)
    if isinstance(connector, DecodeConnector):
        report |= connector.stats()
    if isinstance(connector, PrefillConnector):
        report |= {"leases": len(connector.leases), "num_expired": connector.num_expired}
    return report


class Worker:
    """An engine process, seen from outside."""

    def __init__(self, config: WorkerConfig) -> None:
        if config.role == "prefill":
            # The name is known here, in case that the process is killed before it says a word.
            config = replace(config, memory=new_name())
        self.config = config
        self.ready: Ready | None = None
        context = multiprocessing.get_context("spawn")  # a fork would copy torch's threads, half alive
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=run_worker, args=(theirs, config), daemon=True)
        self.process.start()
        theirs.close()  # so that the end of that process is the end of the pipe

    def wait_until_ready(self) -> Ready:
        """Raises LabError: it could not start, and why."""
        try:
            answer = self.pipe.recv()
        except (EOFError, ConnectionError):
            raise LabError(f"the {self.config.role} process ended before it was ready") from None
        if isinstance(answer, LabError):
            raise answer
        self.ready = answer
        return answer

    def send(self, *commands: Add | Finish) -> None:
        with suppress(ConnectionError):  # it has died: whoever reads from it will hear of that
            self.pipe.send(list(commands))

    def books(self) -> dict[str, Any]:
        """Its books, when it has nothing else to say."""
        self.pipe.send("books?")
        while not isinstance(answer := self.pipe.recv(), dict):
            pass
        return answer

    def bury(self) -> None:
        """After its death, or to end it: nothing of it stays."""
        self.process.kill()
        self.process.join()
        self.pipe.close()
        if self.config.memory is not None:
            self.config.memory.unlink(missing_ok=True)  # who was killed cannot tidy up

    def stop(self) -> None:
        """End it in peace, or else by force."""
        self.pipe.close()
        self.process.join(2)
        self.bury()
