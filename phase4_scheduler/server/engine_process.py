"""The engine process: it steps, and does nothing else.

Python runs one thread at a time. Were requests read, tokenised and written to sockets in the process that steps, every
step would wait for that work. So two processes share it. Commands go to the engine as they come, so that a request takes part in
the next step, and one message comes back from each step:

    API process      tokenises, checks, detokenises, writes to sockets
        |  commands: add and finish                  ^  a step: new tokens, and what the metrics need
        v                                            |
    engine process   schedules, computes, samples

Source: vllm/v1/engine/core.py, EngineCoreProc. vLLM joins the two with ZeroMQ; here it is a pipe.
"""

import atexit
import gc
import multiprocessing
import signal
import sys
from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from labkit.interrupts import end_with_parent, interrupt
from phase2_attention_kvcache.measuring.roofline import Work, matrix_bytes, work_of_batch
from phase2_attention_kvcache.model import SamplingParams
from phase2_attention_kvcache.model.transformer import Transformer
from phase4_scheduler.assembly import build_core, load_model, split_settings
from phase4_scheduler.engine import EngineConfig, EngineCore, EngineDeadError, Request, SchedulerOutput
from phase4_scheduler.engine.core import EngineCoreOutput
from phase4_scheduler.engine.request import RequestLimits
from phase4_scheduler.features.kv_events import KVEvent, KVEventBlockManager
from phase4_scheduler.features.recording import EngineStats, Event, record
from phase4_scheduler.features.speculation import SpecDecodingStats

MOST_COMMANDS = 64  # between two steps, and of a message: a few ms


class Add(NamedTuple):
    """A request that was checked: a `Request`, as far as it can travel."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    arrival_time: float
    priority: int


class Finish(NamedTuple):
    """End a request."""

    request_id: str
    reason: str


@dataclass(frozen=True)
class EngineArgs:
    """What an engine is started with.

    Attributes:
        model, dtype, device: as for `load_model`.
        settings: fields of `EngineConfig`, and settings of features.
        enable_mfu_metrics, record_steps: as for `AsyncEngine`.
    """

    model: str
    dtype: str
    device: str
    settings: dict[str, Any]
    enable_mfu_metrics: bool = False
    record_steps: bool = False

    def start(self, tell: Callable[[str], None] = lambda _: None) -> EngineCore:
        """The engine, warmed up. tell: called with a line about each piece of the warm-up."""
        config, features = split_settings(self.settings)
        model = load_model(self.model, self.dtype, self.device, features)
        core = build_core(model, config, features=features)
        warm_up(core, tell)
        return core


@dataclass(frozen=True)
class EngineLimits:
    """What the API process must know of the engine. Sent when it is ready.

    Attributes:
        requests: how long a request may be, so that it is refused before its stream begins.
        config: of the engine, as the metrics tell it.
        num_speculative_tokens: 0: no drafts.
    """

    requests: RequestLimits
    num_blocks: int
    config: EngineConfig
    num_speculative_tokens: int = 0

    @classmethod
    def of(cls, core: EngineCore) -> "EngineLimits":
        scheduler = core.scheduler
        most = getattr(scheduler, "num_speculative_tokens", 0)
        return cls(scheduler.limits, core.block_manager.num_blocks, scheduler.config, most)

    @property
    def max_model_len(self) -> int:
        return self.requests.max_model_len

    @property
    def block_size(self) -> int:
        return self.config.block_size


@dataclass
class StepMessage:
    """A step of the engine, and its state afterwards."""

    outputs: list[EngineCoreOutput] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)  # requests that cannot be served, and why
    ended: float = 0.0  # the step's last moment
    work: Work | None = None  # what the step computed and moved, if that is to be estimated
    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float = 0.0
    stats: EngineStats = field(default_factory=EngineStats)  # since the start
    spec_decode: SpecDecodingStats | None = None  # since the start, with speculative decoding
    events: list[Event] = field(default_factory=list)  # of the step, if steps are recorded
    kv_events: list[KVEvent] = field(default_factory=list)  # since the last step, if the engine tells them


class StoredBytes(NamedTuple):
    """As they lie in memory, scales included: all matrices of the model, and a token's keys and values in all layers."""

    weights: int
    kv_of_token: int

    @classmethod
    def of(cls, core: EngineCore) -> "StoredBytes":
        cache = core.runner.kv_cache
        return cls(matrix_bytes(core.model), cache.storage.nbytes // (cache.num_blocks * cache.block_size))


def spare_collections() -> None:
    """Let Python's garbage collector skip what is there now, and look at all that came later a tenth as often as usual.

    Everything waits for it: 0.2 s with torch loaded, and 30 ms when 16,384 requests wait.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 10, 100)


def run_engine(pipe: Connection, args: EngineArgs) -> None:
    """The engine process, from its start to its end: until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches both processes; the other one decides
    # Unwinds, which ends the ranks, also while they start.
    signal.signal(signal.SIGTERM, partial(interrupt, unwinds_imports=True))
    end_with_parent()
    try:
        core = args.start(pipe.send)
    except Exception as error:
        pipe.send(error)
        return
    stored = StoredBytes.of(core) if args.enable_mfu_metrics else None
    events: list[Event] = []
    if args.record_steps:
        record(core, events.append)
    spare_collections()
    try:
        pipe.send(EngineLimits.of(core))
        while True:
            message = turn(core, take_commands(pipe, core.scheduler.has_requests), stored)
            message.events = events.copy()
            events.clear()
            pipe.send(message)
    except (EOFError, ConnectionError):
        pass  # the API process is gone
    except EngineDeadError as error:
        sys.exit(str(error))
    finally:
        core.shutdown()


def take_commands(pipe: Connection, busy: bool) -> list[Add | Finish]:
    """What is there, up to about MOST_COMMANDS; if there is nothing to compute, wait for the first."""
    commands: list[Add | Finish] = []
    while (len(commands) < MOST_COMMANDS and pipe.poll()) or not (commands or busy):
        commands += pipe.recv()
    return commands


def warm_up(core: EngineCore, tell: Callable[[str], None] = lambda _: None) -> None:
    """A prefill, a decode step and one with both: kernels are compiled when they are first called, before a user waits for
    that. Then what the runner itself prepares: recordings of decode steps, on a GPU; and the compiler of grammars.

    They write into blocks that are free and stay free, so the engine is as new afterwards.
    """
    manager = core.block_manager
    most = (manager.num_blocks - 1) // 2 * manager.block_size
    num_tokens = min(100, core.scheduler.max_model_len - 1, most)
    if num_tokens < 1:
        return
    tell("kernels for prompts and answers")
    for counts in ((num_tokens,), (1,), (1, num_tokens)):
        output = SchedulerOutput()
        for number, count in enumerate(counts):
            request = Request(f"warm-up {number}", [0] * num_tokens, SamplingParams(temperature=0))
            each = manager.blocks_for(num_tokens)
            request.block_table.block_ids = list(range(1 + number * each, 1 + (number + 1) * each))
            core.scheduler.add_to_step(output, request, count, num_tokens - count)
        core.runner.run(output)
    for line in core.runner.prepare():
        tell(line)
    if (compiler := getattr(core, "compiler", None)) is not None and compiler.is_possible:
        tell("grammars")
        compiler.prepare()


def turn(core: EngineCore, commands: list[Add | Finish], stored: StoredBytes | None = None) -> StepMessage:
    """Obey, then step, if there is anything to compute.

    Args:
        stored: what a step reads, if its work is to be estimated.
    """
    message = StepMessage()
    for command in commands:
        if isinstance(command, Finish):
            core.finish(*command)
            continue
        try:
            core.add(Request(*command, core.model.config.eos_token_ids))
        except ValueError as error:
            message.refused.append((command.request_id, str(error)))
    if core.scheduler.has_requests:
        step = core.step()
        message.outputs, message.ended = step.outputs, step.ended
        if stored is not None:
            message.work = estimated_work(core.model, step.scheduler_output, stored)
    message.num_running = len(core.scheduler.running)
    message.num_waiting = core.scheduler.num_waiting
    message.kv_cache_usage = core.block_manager.usage
    if isinstance(core.block_manager, KVEventBlockManager):
        message.kv_events = core.block_manager.take_kv_events()
    message.stats = copy(core.stats)
    message.spec_decode = deepcopy(getattr(core, "spec_decoding_stats", None))
    return message


def estimated_work(model: Transformer, step: SchedulerOutput, stored: StoredBytes) -> Work:
    """What a step asked of the machine, by the arithmetic of phase 2's roofline. Nothing is measured.

    A draft model does not count.

    vllm/v1/metrics/perf.py estimates the same. It adds the vectors between the layers to the bytes. To the operations it
    adds the attention that is masked, and a third matrix to every MLP, which GPT-2 has not.
    """
    parts = [(s.num_computed, s.num_tokens) for s in step.scheduled]
    return work_of_batch(model.config, parts, model.dtype.itemsize, *stored)


def start_engine(args: EngineArgs) -> tuple[multiprocessing.Process, Connection]:
    """Start the engine process. It sends lines about its warm-up, then its `EngineLimits`, or the exception that stopped it."""
    context = multiprocessing.get_context("spawn")  # a fork would copy torch's threads, half alive
    ours, theirs = context.Pipe()
    # No daemon, for those may not start processes, as an engine does whose model is shared.
    process = context.Process(target=run_engine, args=(theirs, args), name="engine")
    process.start()
    atexit.register(process.terminate)
    theirs.close()  # so that the end of that process is the end of the pipe
    return process, ours
