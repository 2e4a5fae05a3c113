"""Comparing two engines' answers and schedules, and recording those of ours. Nothing here needs vLLM."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine import LLMEngine

Record = dict[str, Any]
"""An answer, {"token_ids": [...], "top": at each place the best tokens as [id, log probability]}, or a step of a schedule."""


class Difference(NamedTuple):
    """The first place at which two answers part.

    Attributes:
        tokens: ours and theirs; None where one of them had ended.
        gap: how much likelier an engine finds its own token than the other's, in log probability: the larger
            of both engines' gaps. None if one of them does not have the other's token among its best two.
    """

    request: int
    place: int
    tokens: tuple[int | None, int | None]
    gap: float | None


@dataclass
class TokenComparison:
    """Answers side by side. A tie is a difference whose gap is so small that rounding decides."""

    equal_tokens: int = 0
    ties: list[Difference] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)


def compare_tokens(ours: Sequence[Record], theirs: Sequence[Record], tie: float) -> TokenComparison:
    """Compare answers token by token, each up to the first difference: after it, they answer different texts.

    Args:
        tie: largest gap that counts as none: two ways of adding up may order such tokens differently.
    """
    result = TokenComparison()
    for request, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        ids = [*a["token_ids"], None], [*b["token_ids"], None]
        place = next((i for i, (x, y) in enumerate(zip(*ids)) if x != y), len(a["token_ids"]))
        result.equal_tokens += place
        mine, other = ids[0][place], ids[1][place]
        if mine != other:
            gaps = [_gap(a, place, mine, other), _gap(b, place, other, mine)]
            gap = None if None in gaps else max(gaps)
            found = Difference(request, place, (mine, other), gap)
            (result.ties if gap is not None and gap <= tie else result.differences).append(found)
    return result


def _gap(answer: Record, place: int, chosen: int | None, other: int | None) -> float | None:
    best = dict(map(tuple, answer["top"][place])) if place < len(answer["top"]) else {}
    return best[chosen] - best[other] if chosen in best and other in best else None


class ScheduleDifference(NamedTuple):
    """The first step that two schedulers decide differently, and in what."""

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
) -> list[Record]:
    """As the worker's "generate"."""
    params = SamplingParams(
        temperature=0, max_tokens=max_tokens, stop_token_ids=stop_token_ids, ignore_eos=True, logprobs=2
    )
    return [
        {"token_ids": o.token_ids, "top": [list(map(list, place.items())) for place in o.logprobs]}
        for o in engine.generate(prompts, params)
    ]


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
