"""The engine process: it steps, and does nothing else.

Python runs one thread at a time. Were requests read, tokenised and written to sockets in the process that steps, every
step would wait for that work. So two processes share it. Between them goes at most one message a step each way:

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
from copy import deepcopy
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from phase2_attention_kvcache.model import SamplingParams
from phase2_attention_kvcache.model.kv_formats import kv_bytes_of_token
from phase2_attention_kvcache.model.roofline import Work, matrix_bytes, work_of_batch
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging.block_manager import BlockManager
from phase4_scheduler.engine.build import load_model
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.core import EngineCore, EngineCoreOutput
from phase4_scheduler.engine.events import Event, StepRecorder
from phase4_scheduler.engine.executor import ExecutorError, start_executor
from phase4_scheduler.engine.request import Request
from phase4_scheduler.engine.scheduler import SchedulerOutput
from phase4_scheduler.engine.speculation import SpecDecodingStats


class Add(NamedTuple):
    """A request that was checked: a `Request`, as far as it can travel."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    arrival_time: float
    priority: int
    kv_transfer_params: dict[str, Any] | None = None


class Finish(NamedTuple):
    """End a request, or with `index` one of its sequences."""

    request_id: str
    reason: str
    index: int | None = None


@dataclass(frozen=True)
class EngineArgs:
    """What an engine is started with.

    Attributes:
        model, dtype, device: as for `load_model`.
        settings: fields of `EngineConfig`.
        enable_mfu_metrics, record_steps: as for `AsyncEngine`.
    """

    model: str
    dtype: str
    device: str
    settings: dict[str, Any]
    enable_mfu_metrics: bool = False
    record_steps: bool = False

    def load(self) -> tuple[Transformer, EngineConfig]:
        """The model, warmed up, and the configuration. Raises: as `load_model` and `EngineConfig`."""
        config = EngineConfig(**self.settings)
        model = load_model(self.model, self.dtype, self.device, config.quantization)
        warm_up(model)
        return model, config

    def start(self) -> EngineCore:
        """The engine. A model that is shared lies in processes of its own, each of which warms up with the first request."""
        config = EngineConfig(**self.settings)
        if config.world_size == 1:
            return EngineCore(*self.load())
        executor = start_executor(config, self.model, self.dtype, self.device)
        return EngineCore(executor.model, config, executor=executor)


@dataclass(frozen=True)
class EngineLimits:
    """What the API process must know to refuse a request by itself. Sent when the engine is ready."""

    max_model_len: int
    num_blocks: int
    block_size: int
    config: EngineConfig
    sliding_window: int | None = None

    # `check_size` asks the limits as it asks the manager.
    blocks_for, most_blocks = BlockManager.blocks_for, BlockManager.most_blocks

    @classmethod
    def of(cls, core: EngineCore) -> "EngineLimits":
        manager, longest = core.block_manager, core.scheduler.max_model_len
        return cls(longest, manager.num_blocks, manager.block_size, core.config, manager.sliding_window)


@dataclass
class StepMessage:
    """A step of the engine, and how it stands after it."""

    outputs: list[EngineCoreOutput] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)  # requests that cannot be served, and why
    ended: float = 0.0  # the step's last moment
    work: Work | None = None  # what the step computed and moved, if that is to be estimated
    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float = 0.0
    num_preemptions: int = 0  # since the start, as the next two
    prefix_queries: int = 0
    prefix_hits: int = 0
    spec_decode: SpecDecodingStats | None = None  # since the start, with speculative decoding
    events: list[Event] = field(default_factory=list)  # of the step, if steps are recorded


class StoredBytes(NamedTuple):
    """As they lie in memory, scales included: all matrices of the model, and a token's keys and values in all layers."""

    weights: int
    kv_of_token: int

    @classmethod
    def of(cls, core: EngineCore) -> "StoredBytes":
        model = core.model
        kv = kv_bytes_of_token(model.config, core.config.kv_cache_dtype, model.dtype)
        return cls(matrix_bytes(model), kv)


def run_engine(pipe: Connection, args: EngineArgs) -> None:
    """The engine process, from its start to its end: until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches both processes; the other one decides
    try:
        core = args.start()
    except Exception as error:
        pipe.send(error)
        return
    if core.config.world_size > 1:  # nobody ends the ranks if this process is terminated at once
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    stored = StoredBytes.of(core) if args.enable_mfu_metrics else None
    events: list[Event] = []
    recorder = StepRecorder(events.append, core.scheduler) if args.record_steps else None
    gc.collect()
    gc.freeze()  # as in `run_server`: no step is to wait for it
    try:
        pipe.send(EngineLimits.of(core))
        while True:
            # Nothing to do: wait for a command. Otherwise take what is there, and step.
            commands: list[Add | Finish] = []
            while pipe.poll() or not (commands or core.scheduler.has_requests):
                commands += pipe.recv()
            message = turn(core, commands, stored, recorder)
            message.events = events.copy()
            events.clear()
            pipe.send(message)
    except (EOFError, ConnectionError):
        pass  # the API process is gone
    except ExecutorError as error:
        sys.exit(str(error))
    finally:
        core.shutdown()


def warm_up(model: Transformer) -> None:
    """A prefill and a decode step: kernels are compiled when they are first called, and no user is to wait for that."""
    core = EngineCore(model, EngineConfig(num_blocks=2))
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    core.add(Request("warm-up", [0], params, 0.0, 0, model.config.eos_token_ids))
    while core.scheduler.has_requests:
        core.step()


def turn(
    core: EngineCore,
    commands: list[Add | Finish],
    stored: StoredBytes | None = None,
    recorder: StepRecorder | None = None,
) -> StepMessage:
    """Obey, then step, if there is anything to compute.

    Args:
        stored: what a step reads, if its work is to be estimated.
        recorder: writes the step down, if steps are recorded.
    """
    message = StepMessage()
    for command in commands:
        if isinstance(command, Finish):
            core.finish(*command)
            continue
        try:
            *fields, kv_transfer_params = command
            request = Request(*fields, core.model.config.eos_token_ids)
            request.kv_transfer_params = kv_transfer_params
            core.add(request)
        except ValueError as error:
            message.refused.append((command.request_id, str(error)))
    if core.scheduler.has_requests:
        step = core.step()
        message.outputs, message.ended = step.outputs, step.ended
        if stored is not None:
            message.work = estimated_work(core.model, step.scheduler_output, stored)
        if recorder is not None:
            recorder.record(core.num_steps - 1, step)
    scheduler = core.scheduler
    message.num_running = scheduler.num_running_seqs
    message.num_waiting = len(scheduler.waiting) + len(scheduler.holding)
    message.kv_cache_usage = core.block_manager.usage
    message.num_preemptions = scheduler.num_preemptions
    message.prefix_queries, message.prefix_hits = scheduler.prefix_queries, scheduler.prefix_hits
    message.spec_decode = core.speculation and deepcopy(core.speculation.stats)
    return message


def estimated_work(model: Transformer, step: SchedulerOutput, stored: StoredBytes) -> Work:
    """What a step asked of the machine, by the arithmetic of phase 2's roofline. Nothing is measured.

    A draft model does not count.

    vllm/v1/metrics/perf.py estimates the same. It adds the vectors between the layers to the bytes. To the operations it
    adds the attention that is masked, and a third matrix to every MLP, which GPT-2 has not.
    """
    # A fork computes nothing.
    parts = [(s.num_computed, s.num_tokens) for s in step.scheduled if s.num_tokens]
    return work_of_batch(model.config, parts, model.dtype.itemsize, *stored)


def start_engine(args: EngineArgs) -> tuple[multiprocessing.Process, Connection]:
    """Start the engine process. The first message is its `EngineLimits`, or the exception that stopped it."""
    context = multiprocessing.get_context("spawn")  # a fork would copy torch's threads, half alive
    ours, theirs = context.Pipe()
    # No daemon, for those may not start processes, as an engine does whose model is shared.
    process = context.Process(target=run_engine, args=(theirs, args), name="engine")
    process.start()
    atexit.register(process.terminate)
    theirs.close()  # so that the end of that process is the end of the pipe
    return process, ours
