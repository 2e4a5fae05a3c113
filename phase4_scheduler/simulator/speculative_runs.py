"""Speculative decoding, computed and measured: the cost of a step with drafts, its tokens, and the speed-up."""

import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine import LLMEngine
from phase4_scheduler.simulator.cost_model import CostModel, StepSize


@dataclass
class Window:
    """Steps in which all requests decode.

    Attributes:
        tokens: that these steps brought, of all requests. seconds: of each step.
        accepted: by position, the share of the drafts that were accepted there; empty without drafts.
    """

    tokens: int = 0
    seconds: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)

    @property
    def step_seconds(self) -> float:
        """First quartile of the step times: a step that no other program delayed."""
        return statistics.quantiles(self.seconds, n=4)[0]

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / len(self.seconds)

    @property
    def tokens_per_second(self) -> float:
        """At the pace of `step_seconds`."""
        return self.tokens_per_step / self.step_seconds


WARM_UP, TURN = 3, 4  # steps
CONTEXT = 1024  # tokens


def decode_in_turn(
    engines: Mapping[str, LLMEngine], prompts: Sequence[Any], params: SamplingParams, steps: int
) -> dict[str, Window]:
    """Let each engine decode all these requests together for some steps, then send them away.

    The engines take turns, a few steps each: a machine has its moods, and they come over all alike. Prompts are not in
    the windows.
    """
    windows = {name: Window() for name in engines}
    before = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that speculation loses from so many requests on is what is measured
        for name, engine in engines.items():
            waiting = {str(i) for i in range(len(prompts))}
            for i, prompt in enumerate(prompts):
                engine.add_request(str(i), prompt, params)
            while waiting:
                waiting -= {output.request_id for output in engine.step()}
            for _ in range(WARM_UP):
                engine.step()
            before[name] = _drafts_so_far(engine)
        turns = -(-steps // TURN)
        for name, engine in list(engines.items()) * turns:
            engine.step()  # fetches its weights and keys back into the processor's caches; not in the window
            for _ in range(TURN):
                began = time.perf_counter()
                outputs = engine.step()
                windows[name].seconds.append(time.perf_counter() - began)
                windows[name].tokens += sum(len(c.token_ids) for o in outputs for c in o.outputs)
    for name, engine in engines.items():
        for i in range(len(prompts)):
            engine.abort(str(i))
        drafts, *accepted = (
            now - then for now, then in zip(_drafts_so_far(engine), before[name], strict=True)
        )
        if drafts:
            windows[name].accepted = [count / drafts for count in accepted]
    return windows


def _drafts_so_far(engine: LLMEngine) -> list[int]:
    """Verifications so far, and how often the first draft was accepted, the second, ..."""
    stats = getattr(engine.core, "spec_decoding_stats", None)
    return [0] if stats is None else [stats.num_drafts, *stats.num_accepted_tokens_per_pos]


def expected_tokens(accepted: Sequence[float], num_drafts: int) -> float:
    """Tokens that a step brings a request: one, and each draft with the probability that it and all before it are accepted.

    >>> expected_tokens([0.6, 0.4, 0.2], num_drafts=2)
    2.0
    """
    return 1 + sum(accepted[:num_drafts])


def expected_speedup(
    tokens: float, plain_seconds: float, verifying_seconds: float, drafting_seconds: float = 0.0
) -> float:
    """Tokens per second with drafts / without: a step yields more tokens and takes longer. Above 1 it pays.

    >>> expected_speedup(tokens=2.0, plain_seconds=0.010, verifying_seconds=0.013, drafting_seconds=0.003)
    1.25
    """
    return tokens * plain_seconds / (verifying_seconds + drafting_seconds)


def computed_speedup(
    model: CostModel, drafter: CostModel, users: int, num_drafts: int, accepted: float
) -> float:
    """The same by two cost models, without a measurement.

    Args:
        users: requests of CONTEXT tokens that share the step.
        accepted: probability that a draft is accepted if those before it were.
    """

    def seconds(cost: CostModel, tokens: int) -> float:
        size = StepSize.of([(CONTEXT - 1, tokens)] * users)
        return cost.seconds(size._replace(num_requests=users * tokens))  # each row needs scores

    shares = [accepted**i for i in range(1, num_drafts + 1)]
    drafting = num_drafts * seconds(drafter, 1)
    times = (seconds(model, 1), seconds(model, 1 + num_drafts), drafting)
    return expected_speedup(expected_tokens(shares, num_drafts), *times)


class AlwaysProposes:
    """A proposer that knows nothing: to see what it costs to ask, and to verify for nothing."""

    def __init__(self, *token_ids: int) -> None:
        self._token_ids = token_ids

    def propose(self, token_ids: Sequence[int], num_drafts: int) -> Sequence[int]:
        return self._token_ids[:num_drafts]
