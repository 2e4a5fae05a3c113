"""Traffic for the real engine, in real time; and its steps, measured.

The load is open: users do not wait for each other, so a request comes when it is due, however busy the
engine is. A test that sends the next request only when the last one is answered can never show a queue.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from labkit.errors import LabError
from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine import LLMEngine
from phase4_scheduler.simulator.cost_model import FittedCost, fit_cost
from phase4_scheduler.simulator.latency import RequestRecord
from phase4_scheduler.simulator.step_size import StepSize
from phase4_scheduler.simulator.traffic import PromptMaker, TrafficRequest, draw_traffic, fit_lengths


def serve(
    engine: LLMEngine, requests: Sequence[TrafficRequest], prompts: PromptMaker
) -> Iterator[RequestRecord]:
    """Send requests to an engine when they are due, and yield each as it is finished.

    Times are in seconds after the call. A request counts as arrived when it was due, even if the engine was
    in the middle of a step then.
    """
    made = [prompts.prompt(r, i) for i, r in enumerate(requests)]  # before the clock starts
    start, sent = time.perf_counter(), 0
    while sent < len(requests) or engine.has_unfinished_requests:
        now = time.perf_counter() - start
        while sent < len(requests) and requests[sent].arrival <= now:
            _add(engine, sent, made[sent], requests[sent], start)
            sent += 1
        if engine.has_unfinished_requests:
            for number, metrics in _finished(engine):
                yield RequestRecord.of(requests[number], metrics, start)
        else:
            time.sleep(max(0.0, requests[sent].arrival - now))


def warm_up(engine: LLMEngine, requests: Sequence[TrafficRequest], prompts: PromptMaker) -> None:
    """On a GPU, serve the requests once before a clock runs: kernels are compiled, and graphs recorded, at the
    first step of their kind. A CPU needs nothing of that, and users would wait for it."""
    if engine.model.device.type == "cuda":
        for _ in serve(engine, [replace(r, arrival=0.0) for r in requests], prompts):
            pass
        engine.block_manager.reset_prefix_cache()


def interrupt(
    engine: LLMEngine, requests: Sequence[TrafficRequest], steps: int, prompts: PromptMaker
) -> list[RequestRecord]:
    """Let all but the last request run for some steps. Then the last one comes in. Records in this order.

    Told by steps and not by the clock, so that it is the same experiment on a slow machine.
    """
    made = [prompts.prompt(r, i) for i, r in enumerate(requests)]
    requests = [replace(r, arrival=0.0) for r in requests]
    last, start = len(requests) - 1, time.perf_counter()
    for i in range(last):
        _add(engine, i, made[i], requests[i], start)
    records: dict[int, RequestRecord] = {}
    while len(records) < len(requests):
        for number, metrics in _finished(engine):
            records[number] = RequestRecord.of(requests[number], metrics, start)
        if steps == 0:
            requests[last] = replace(requests[last], arrival=time.perf_counter() - start)
            _add(engine, last, made[last], requests[last], start)
        steps -= 1
    return [records[i] for i in range(len(requests))]


def _add(engine: LLMEngine, number: int, prompt: list[int], request: TrafficRequest, start: float) -> None:
    params = SamplingParams(temperature=0, max_tokens=request.output_tokens, ignore_eos=True)
    engine.add_request(str(number), prompt, params, request.priority, start + request.arrival)


def _finished(engine: LLMEngine) -> list[tuple[int, Any]]:
    """Make a step: (number, metrics) of each request that ended in it."""
    outputs = engine.step()
    for output in outputs:
        if output.error:
            raise LabError(f"the engine gave up on a request: {output.error}")
    return [(int(output.request_id), output.metrics) for output in outputs if output.finished]


def size_of_event(event: dict[str, Any]) -> StepSize:
    """How much a recorded step had to do."""
    return StepSize.of([(event["computed"][name], n) for name, n in event["tokens"].items()])


def in_waves(
    patterns: Sequence[str], requests: int, max_model_len: int, seed: int
) -> list[list[TrafficRequest]]:
    """So many requests of each pattern, with lengths that fit, in waves: the next begins when one is served.

    Half of them come as one, then two, then three, and so on, the others all at once: among their steps are some of every
    width, full of prompts or without any.
    """
    drawn = (draw_traffic(pattern, requests, math.inf, seed=seed) for pattern in patterns)
    left = [request for traffic in drawn for request in fit_lengths(traffic, max_model_len)[0]]
    waves, half = [], len(left) // 2
    while len(left) > half:
        wave = min(len(waves) + 1, len(left) - half)
        waves.append(left[:wave])
        del left[:wave]
    return [*waves, left]


def measure_cost(
    make_engine: Callable[..., LLMEngine],
    max_model_len: int,
    requests: int,
    seed: int = 0,
    source: str = "",
    watch: Callable[[Iterator[RequestRecord]], Iterator[RequestRecord]] = iter,
    patterns: Sequence[str] = ("mixed",),
) -> FittedCost:
    """Fit a cost model to steps of the real engine.

    Its steps must be of all kinds: a price cannot be found where nothing of it was bought (`in_waves`).

    Args:
        make_engine: takes fields of EngineConfig.
        max_model_len: lengths are made to fit this.
        requests: of each pattern.
        watch: gets the finished requests as they come, such as for a progress bar.
    """
    first_steps = SamplingParams(temperature=0, max_tokens=4)  # slower than all others
    make_engine(max_num_seqs=2).generate([[1, 2, 3]] * 2, first_steps)
    engine = make_engine(max_num_seqs=16, max_num_batched_tokens=256)
    waves = in_waves(patterns, requests, max_model_len, seed)
    warm_up(engine, waves[-1], PromptMaker(engine.model.config.vocab_size, seed))
    return fit_cost(*measure_steps(engine, waves, seed, watch), source, seed)


def measure_steps(
    engine: LLMEngine,
    waves: Sequence[Sequence[TrafficRequest]],
    seed: int,
    watch: Callable[[Iterator[RequestRecord]], Iterator[RequestRecord]] = iter,
) -> tuple[list[StepSize], list[float]]:
    """Serve one wave after the other: what each step had to do, and how many seconds it took."""
    sizes: list[StepSize] = []
    seconds: list[float] = []
    events: list[dict[str, Any]] = []

    def served() -> Iterator[RequestRecord]:
        for i, wave in enumerate(waves):
            yield from serve(engine, wave, PromptMaker(engine.model.config.vocab_size, seed + i))
            steps = [event for event in events if event["tokens"]]
            # A step lasts until the next one begins: its tokens have to be handed out.
            seconds.extend(np.diff([event["time"] for event in steps]).tolist())
            sizes.extend(size_of_event(event) for event in steps[:-1])
            events.clear()

    engine.record(events.append)
    for _ in watch(served()):
        pass
    engine.record(None)
    return sizes, seconds
