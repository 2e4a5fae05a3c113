"""Traffic for the real engine, in real time; and its steps, measured.

The load is open: users do not wait for each other, so a request comes when it is due, however busy the
engine is. A test that sends the next request only when the last one is answered can never show a queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from labkit.errors import LabError
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase4_scheduler.simulator.cost_model import FittedCost, StepWork, fit_cost
from phase4_scheduler.simulator.latency import RequestRecord
from phase4_scheduler.simulator.traffic import PromptMaker, TrafficRequest, draw_traffic, fit_lengths

if TYPE_CHECKING:
    from phase4_scheduler.engine.engine import LLMEngine


def serve(
    engine: LLMEngine, requests: Sequence[TrafficRequest], prompts: PromptMaker
) -> Iterator[RequestRecord]:
    """Send requests to an engine when they are due, and yield each as it is finished.

    Times are in seconds after the call. A request counts as arrived when it was due, even if the engine was
    in the middle of a step then.
    """
    made = [prompts.prompt(r, i) for i, r in enumerate(requests)]  # before the clock starts
    params = [SamplingParams(temperature=0, max_tokens=r.output_tokens, ignore_eos=True) for r in requests]
    start, sent = time.perf_counter(), 0
    while sent < len(requests) or engine.has_unfinished_requests:
        now = time.perf_counter() - start
        while sent < len(requests) and requests[sent].arrival <= now:
            arrived = start + requests[sent].arrival
            engine.add_request(str(sent), made[sent], params[sent], requests[sent].priority, arrived)
            sent += 1
        if not engine.has_unfinished_requests:
            time.sleep(max(0.0, requests[sent].arrival - now))
            continue
        for output in engine.step():
            if output.error:
                raise LabError(f"the engine gave up on a request: {output.error}")
            if output.finished:
                yield _record(requests[int(output.request_id)], output.metrics, start)


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
    start = time.perf_counter()
    *early, late = [replace(r, arrival=0.0) for r in requests]
    for i, r in enumerate(early):
        params = SamplingParams(temperature=0, max_tokens=r.output_tokens, ignore_eos=True)
        engine.add_request(str(i), prompts.prompt(r, i), params, arrival_time=start)
    finished: dict[int, RequestRecord] = {}
    made = prompts.prompt(late, len(early))
    while len(finished) < len(requests):
        for output in engine.step():
            if output.error:
                raise LabError(f"the engine gave up on a request: {output.error}")
            if output.finished:
                i = int(output.request_id)
                finished[i] = _record([*early, late][i], output.metrics, start)
        if steps == 0:
            params = SamplingParams(temperature=0, max_tokens=late.output_tokens, ignore_eos=True)
            late = replace(late, arrival=time.perf_counter() - start)
            engine.add_request(str(len(early)), made, params, arrival_time=start + late.arrival)
        steps -= 1
    return [finished[i] for i in range(len(requests))]


def _record(request: TrafficRequest, metrics: Any, start: float) -> RequestRecord:
    return RequestRecord(
        request.kind,
        request.arrival,
        request.prompt_tokens,
        request.output_tokens,
        [t - start for t in metrics.token_times],
        metrics.num_cached_tokens,
        metrics.num_preemptions,
    )


def work_of_event(event: dict[str, Any]) -> StepWork:
    """What a recorded step had to do."""
    return StepWork.of([(event["computed"][name], n) for name, n in event["tokens"].items()])


def measure_cost(
    make_engine: Callable[..., LLMEngine],
    max_model_len: int,
    requests: int,
    seed: int = 0,
    source: str = "",
    watch: Callable[[Iterator[RequestRecord]], Iterator[RequestRecord]] = iter,
) -> FittedCost:
    """Fit a cost model to steps of the real engine.

    All requests are there from the beginning. So the first steps are full of prompts, the next ones of many
    decodes, and the last ones of a few: all kinds of work in one run.

    Args:
        make_engine: takes fields of EngineConfig.
        max_model_len: lengths are made to fit this.
        watch: gets the finished requests as they come, such as for a progress bar.
    """
    make_engine(max_num_seqs=2).generate(
        [[1, 2, 3]] * 2, SamplingParams(temperature=0, max_tokens=4)
    )  # warm up
    work: list[StepWork] = []
    seconds: list[float] = []

    def note(event: dict[str, Any]) -> None:
        if event["tokens"]:
            work.append(work_of_event(event))
            seconds.append(event["seconds"])

    engine = make_engine(max_num_seqs=16, max_num_batched_tokens=256)
    traffic, factor = fit_lengths(draw_traffic("mixed", requests, float("inf"), seed=seed), max_model_len)
    prompts = PromptMaker(engine.model.config.vocab_size, seed, factor)
    warm_up(engine, traffic, prompts)
    engine.record(note)
    for _ in watch(serve(engine, traffic, prompts)):
        pass
    return fit_cost(work, seconds, source, seed)
