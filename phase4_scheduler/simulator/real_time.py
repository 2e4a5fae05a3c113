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
from phase4_scheduler.features.recording import record
from phase4_scheduler.simulator.cost_model import FittedCost, StepSize, fit_cost
from phase4_scheduler.simulator.latency import RequestRecord
from phase4_scheduler.simulator.traffic import PromptMaker, TrafficRequest, draw_traffic, fit_lengths


def serve(
    engine: LLMEngine,
    requests: Sequence[TrafficRequest],
    prompts: PromptMaker,
) -> Iterator[RequestRecord]:
    """Send requests to an engine when they are due, and yield each as it is finished.

    Times are in seconds after the call. A request counts as arrived when it was due, even if the engine was
    in the middle of a step then.
    """
    made = [prompts.prompt(r, i) for i, r in enumerate(requests)]  # before the clock starts
    sent = 0
    start = time.perf_counter()
    while sent < len(requests) or engine.has_unfinished_requests:
        now = time.perf_counter() - start
        if sent < len(requests) and (request := requests[sent]).arrival <= now:
            params = SamplingParams(temperature=0, max_tokens=request.output_tokens, ignore_eos=True)
            engine.add_request(str(sent), made[sent], params, request.priority, start + request.arrival)
            sent += 1
            continue
        if not engine.has_unfinished_requests:
            time.sleep(max(0.0, requests[sent].arrival - now))
            continue
        for output in engine.step():
            if output.error:
                raise LabError(f"the engine gave up on a request: {output.error}")
            if output.finished:
                yield RequestRecord.of(requests[int(output.request_id)], output.metrics, start)


def warm_up(engine: LLMEngine, requests: Sequence[TrafficRequest], prompts: PromptMaker) -> None:
    """On a GPU, serve the requests once before a clock runs: kernels are compiled, and graphs recorded, at the
    first step of their kind. A CPU needs nothing of that, and users would wait for it."""
    if engine.model.device.type == "cuda":
        for _ in serve(engine, [replace(r, arrival=0.0) for r in requests], prompts):
            pass
        engine.core.block_manager.reset_prefix_cache()


def size_of_event(event: dict[str, Any]) -> StepSize:
    """How much a recorded step had to do."""
    return StepSize.of([(event["computed"][name], n) for name, n in event["tokens"].items()])


def in_waves(requests: int, max_model_len: int, seed: int) -> list[list[TrafficRequest]]:
    """So many mixed requests, with lengths that fit, in waves: the next begins when one is served.

    Half of them come as one, then two, then three, and so on, the others all at once: among their steps are some of every
    width, full of prompts or without any.
    """
    left, _ = fit_lengths(draw_traffic("mixed", requests, math.inf, seed=seed), max_model_len)
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
) -> FittedCost:
    """Fit a cost model to steps of the real engine.

    Its steps must be of all kinds: a price cannot be found where nothing of it was bought (`in_waves`).

    Args:
        make_engine: takes fields of EngineConfig.
        max_model_len: lengths are made to fit this.
        requests: how many, of mixed traffic.
        watch: gets the finished requests as they come, such as for a progress bar.
    """
    first_steps = SamplingParams(temperature=0, max_tokens=4)  # slower than all others
    make_engine(max_num_seqs=2).generate([[1, 2, 3]] * 2, first_steps)
    engine = make_engine(max_num_seqs=16, max_num_batched_tokens=256)
    vocabulary, waves = engine.model.config.vocab_size, in_waves(requests, max_model_len, seed)
    warm_up(engine, waves[-1], PromptMaker(vocabulary, seed))
    sizes: list[StepSize] = []
    seconds: list[float] = []
    events: list[dict[str, Any]] = []

    def served() -> Iterator[RequestRecord]:
        for i, wave in enumerate(waves):
            yield from serve(engine, wave, PromptMaker(vocabulary, seed + i))
            steps = [event for event in events if event["tokens"]]
            # A step lasts until the next one begins: its tokens have to be handed out.
            seconds.extend(np.diff([event["time"] for event in steps]).tolist())
            sizes.extend(size_of_event(event) for event in steps[:-1])
            events.clear()

    record(engine, events.append)
    for _ in watch(served()):
        pass
    record(engine, None)
    return fit_cost(sizes, seconds, source, seed)
