"""An engine in a process of its own: one that computes prompts for others, one that writes answers, or one that does both."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from labkit.errors import LabError
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import PagedKVCache
from phase3_paged_attention.paging.block_manager import BlockManager
from phase4_scheduler.engine import EngineConfig, Scheduler
from phase4_scheduler.engine.build import default_num_blocks
from phase4_scheduler.engine.core import EngineCore
from phase4_scheduler.engine.kv_connector import KVConnector
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
    config, manager = _sized(model, config)
    layout = KVLayout.of(model, config.block_size)
    path, storage = create_shared_memory(layout.block_bytes * manager.num_blocks, memory)
    cache = PagedKVCache(
        model.config, manager.num_blocks, config.block_size, model.dtype, model.device, memory=storage
    )
    connector = PrefillConnector(BlockServer(layout, path, manager.num_blocks), lease_seconds, clock)
    return _core(model, config, manager, cache, connector), path


def decode_core(
    model: Transformer, config: EngineConfig, clock: Callable[[], float] = time.monotonic
) -> EngineCore:
    """An engine that reads blocks of prefill sides into its own cache."""
    config, manager = _sized(model, config)
    cache = PagedKVCache(model.config, manager.num_blocks, config.block_size, model.dtype, model.device)
    connector = DecodeConnector(KVLayout.of(model, config.block_size), cache.storage.data, clock)
    return _core(model, config, manager, cache, connector)


def _sized(model: Transformer, config: EngineConfig) -> tuple[EngineConfig, BlockManager]:
    if config.kv_cache_dtype != "auto" or config.preemption == "swap":
        raise LabError(
            "blocks are handed over as the model computes them: kv_cache_dtype 'auto', no swap space"
        )
    config = replace(config, max_model_len=config.max_model_len or model.config.max_context)
    num_blocks = config.num_blocks or default_num_blocks(model, config)
    return config, BlockManager(num_blocks, config.block_size, config.enable_prefix_caching)


def _core(
    model: Transformer,
    config: EngineConfig,
    manager: BlockManager,
    cache: PagedKVCache,
    connector: KVConnector,
) -> EngineCore:
    return EngineCore(
        model, config, scheduler=Scheduler(config, manager, connector=connector), kv_cache=cache
    )


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
    memory, address = None, None
    try:
        if config.core is not None:
            pin(config.core)
        model, engine_config = EngineArgs(config.model, config.dtype, "cpu", config.settings).load()
        if config.role == "prefill":
            core, memory = prefill_core(model, engine_config, config.lease_seconds, config.memory)
            address = core.connector.server.address
        elif config.role == "decode":
            core = decode_core(model, engine_config)
            if config.peer is not None:
                core.connector.connect(config.peer)
        else:
            core = EngineCore(model, engine_config)
    except (LabError, ValueError, OSError) as error:
        pipe.send(error if isinstance(error, LabError) else LabError(str(error)))
        return
    try:
        pipe.send(Ready(address))
        serve(pipe, core)
    except (EOFError, ConnectionError):
        pass  # the proxy is gone
    finally:
        if core.connector is not None:
            core.connector.shutdown()
        if memory is not None:
            memory.unlink(missing_ok=True)


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
        "num_preemptions": core.scheduler.num_preemptions,
        "num_steps": core.num_steps,
        "hit_tokens": core.scheduler.prefix_hits,
    }
    if isinstance(core.connector, DecodeConnector):
        report |= core.connector.stats()
    if isinstance(core.connector, PrefillConnector):
        report |= {"leases": len(core.connector.leases), "num_expired": core.connector.num_expired}
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
