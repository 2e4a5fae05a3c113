"""The engine process: it steps, and does nothing else.

Python runs one thread at a time. Were requests read, tokenised and written to sockets in the process that steps, every
step would wait for that work. So two processes share it. Between them goes at most one message a step each way:

    API process      tokenises, checks, detokenises, writes to sockets
        |  commands: add and finish                  ^  a step: new tokens, and what the metrics need
        v                                            |
    engine process   schedules, computes, samples

Source: vllm/v1/engine/core.py, EngineCoreProc. vLLM joins the two with ZeroMQ; here it is a pipe.
"""

import multiprocessing
import signal
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine.build import load_model
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.core import EngineCore, EngineCoreOutput
from phase4_scheduler.engine.request import Request


class Add(NamedTuple):
    """A request that was checked: a `Request`, as far as it can travel."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    arrival_time: float
    priority: int


class Finish(NamedTuple):
    """End a request, or with `index` one of its sequences."""

    request_id: str
    reason: str
    index: int | None = None


@dataclass(frozen=True)
class EngineLimits:
    """What the API process must know to refuse a request by itself. Sent when the engine is ready."""

    max_model_len: int
    num_blocks: int
    block_size: int
    config: EngineConfig


@dataclass
class StepMessage:
    """A step of the engine, and how it stands after it."""

    outputs: list[EngineCoreOutput] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)  # requests that cannot be served, and why
    ended: float = 0.0  # the step's last moment
    num_batched_tokens: int = 0
    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float = 0.0
    num_preemptions: int = 0
    prefix_queries: int = 0  # tokens, since the start
    prefix_hits: int = 0


def run_engine(pipe: Connection, model: str, dtype: str, device: str, settings: dict[str, Any]) -> None:
    """The engine process, from its start to its end: until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches both processes; the other one decides
    try:
        transformer = load_model(model, dtype, device)
        core = EngineCore(transformer, EngineConfig(**settings))
    except Exception as error:
        pipe.send(error)
        return
    manager = core.block_manager
    try:
        pipe.send(
            EngineLimits(core.scheduler.max_model_len, manager.num_blocks, manager.block_size, core.config)
        )
        while True:
            # Nothing to do: wait for a command. Otherwise take what is there, and step.
            commands = pipe.recv() if not core.scheduler.has_requests or pipe.poll() else []
            pipe.send(turn(core, commands))
    except (EOFError, BrokenPipeError):
        pass  # the API process is gone


def turn(core: EngineCore, commands: list[Add | Finish]) -> StepMessage:
    """Obey, then step, if there is anything to compute."""
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
        message.num_batched_tokens = step.scheduler_output.num_batched_tokens
    scheduler, manager = core.scheduler, core.block_manager
    message.num_running, message.num_waiting = len(scheduler.running), len(scheduler.waiting)
    message.kv_cache_usage = manager.usage
    message.num_preemptions = scheduler.num_preemptions
    message.prefix_queries, message.prefix_hits = manager.stats.looked_up_tokens, manager.stats.hit_tokens
    return message


def start_engine(
    model: str, dtype: str, device: str, settings: dict[str, Any]
) -> tuple[multiprocessing.Process, Connection]:
    """Start the engine process. The first message is its `EngineLimits`, or the exception that stopped it."""
    context = multiprocessing.get_context("spawn")  # a fork would copy torch's threads, half alive
    ours, theirs = context.Pipe()
    process = context.Process(
        target=run_engine, args=(theirs, model, dtype, device, settings), name="engine", daemon=True
    )
    process.start()
    theirs.close()  # so that the end of that process is the end of the pipe
    return process, ours
