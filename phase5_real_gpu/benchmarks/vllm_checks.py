"""Compares answers and schedules of two engines, and records ours. It does not need vLLM."""

from collections.abc import Sequence
from itertools import zip_longest
from random import Random
from typing import Any, NamedTuple

from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine import LLMEngine

Record = dict[str, Any]
"""A step of a schedule, or a request."""


class Difference(NamedTuple):
    """The first place where two answers differ. tokens: ours and theirs; None where an answer has ended."""

    request: int
    place: int
    tokens: tuple[int | None, int | None]


def compare_tokens(ours: Sequence[list[int]], theirs: Sequence[list[int]]) -> list[Difference]:
    """Compare answers token by token up to the first difference: after it, the engines continue different texts."""
    pairs = [zip_longest(a, b) for a, b in zip(ours, theirs, strict=True)]
    firsts = [next(((i, p) for i, p in enumerate(tokens) if p[0] != p[1]), None) for tokens in pairs]
    return [Difference(request, *first) for request, first in enumerate(firsts) if first]


class ScheduleDifference(NamedTuple):
    """The first step that two schedulers decide differently, and the field that differs."""

    step: int
    what: str
    ours: Any
    theirs: Any


def compare_schedules(ours: Sequence[Record], theirs: Sequence[Record]) -> ScheduleDifference | None:
    """The first difference of two recordings, field by field; None if there is none."""
    for a, b in zip(ours, theirs):
        for what in a:
            if a[what] != b.get(what):
                return ScheduleDifference(a["step"], what, a[what], b.get(what))
    if len(ours) != len(theirs):
        return ScheduleDifference(min(len(ours), len(theirs)), "number of steps", len(ours), len(theirs))
    return None


# ---------------------------------------------------------------------- ours


def our_answers(
    engine: LLMEngine, prompts: list[list[int]], max_tokens: int, stop_token_ids: list[int]
) -> list[list[int]]:
    """As the worker's "generate"."""
    params = SamplingParams(
        temperature=0, max_tokens=max_tokens, stop_token_ids=stop_token_ids, ignore_eos=True
    )
    return [output.token_ids for output in engine.generate(prompts, params)]


def our_schedule(engine: LLMEngine, requests: list[Record]) -> tuple[list[Record], list[list[int]]]:
    """As the worker's "schedule": the steps, and the answers."""
    scheduler, manager = engine.core.scheduler, engine.core.block_manager
    decide, steps, step = scheduler.schedule, [], 0

    def watched() -> Any:
        output = decide()
        if output.scheduled:
            steps.append({
                "step": step,
                "scheduled": [[int(s.request.request_id), s.num_tokens] for s in output.scheduled],
                "computed": [s.num_computed for s in output.scheduled],
                "blocks": [list(s.request.block_table.block_ids) for s in output.scheduled],
                "preempted": sorted(int(r.request_id) for r in output.preempted),
                "running": [int(r.request_id) for r in scheduler.running],
                "waiting": [int(r.request_id) for r in scheduler.waiting],
                "free_blocks": manager.num_free_blocks,
            })  # fmt: skip
        return output

    scheduler.schedule = watched  # hides the method of the class ...
    answers: dict[int, list[int]] = {r["id"]: [] for r in requests}
    unfinished = len(requests)
    while unfinished:
        for r in requests:
            if r["arrival"] == step:
                params = SamplingParams(temperature=0, max_tokens=r["max_tokens"], ignore_eos=True)
                engine.add_request(str(r["id"]), r["prompt"], params)
        for output in engine.step():
            answers[int(output.request_id)] += output.token_ids
            unfinished -= output.finished
        step += 1
    del scheduler.schedule  # ... and no longer
    return steps, list(answers.values())


def schedule_requests(vocab_size: int, seed: int) -> list[Record]:
    """24 requests: some share the beginning of their prompt, and together they need far more than the cache."""
    rng = Random(seed)
    head = [rng.randrange(vocab_size) for _ in range(70)]
    requests = []
    for i in range(24):
        arrival = 0 if i == 0 else rng.randrange(40)
        shared = head if rng.random() < 0.4 else []
        prompt = shared + [rng.randrange(vocab_size) for _ in range(rng.randint(5, 110))]
        requests.append(dict(id=i, arrival=arrival, prompt=prompt, max_tokens=rng.randint(10, 80)))
    return requests
