"""Speculative decoding, worked out and measured: what a step with drafts costs, what it brings, what comes of both."""

import statistics
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from phase2_attention_kvcache.model import SampledTokens, SamplingParams
from phase4_scheduler.engine import LLMEngine


@dataclass
class Window:
    """Steps in which all requests decode.

    Attributes:
        tokens: that these steps brought, of all requests. seconds: of each step.
        accepted: by position, the share of the drafts that stood there; empty without drafts.
        draft_share: share of the requests' steps that had drafts: a proposer may have none.
    """

    tokens: int = 0
    seconds: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    draft_share: float = 0.0

    @property
    def step_seconds(self) -> float:
        """Of a usual step."""
        return statistics.median(self.seconds)

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / len(self.seconds)


def decode_window(
    engine: LLMEngine, prompts: Sequence[Any], params: SamplingParams, steps: int, warm_up: int = 3
) -> Window:
    """Let all requests decode together for some steps, then send them away. Prompts are not in the window."""
    waiting = {str(i) for i in range(len(prompts))}
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), prompt, params)
    window, stats, before = Window(), None, None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that speculation loses from so many requests on is what is measured
        while waiting:
            waiting -= {output.request_id for output in engine.step()}
        for _ in range(warm_up):
            engine.step()
        if engine.core.speculation is not None:
            stats = engine.core.speculation.stats
            before = stats.num_drafts, list(stats.num_accepted_tokens_per_pos)
        for _ in range(steps):
            began = time.perf_counter()
            outputs = engine.step()
            window.seconds.append(time.perf_counter() - began)
            window.tokens += sum(len(c.token_ids) for output in outputs for c in output.outputs)
    for i in range(len(prompts)):
        engine.abort(str(i))
    if stats is not None and stats.num_drafts > before[0]:
        drafts = stats.num_drafts - before[0]
        window.accepted = [
            (now - then) / drafts for now, then in zip(stats.num_accepted_tokens_per_pos, before[1])
        ]
        window.draft_share = drafts / (steps * len(prompts))
    return window


def expected_tokens(accepted: Sequence[float], num_drafts: int) -> float:
    """Tokens that a step brings a request: one, and each draft with the chance that it and all before it stand.

    >>> expected_tokens([0.6, 0.4, 0.2], num_drafts=2)
    2.0
    """
    return 1 + sum(accepted[:num_drafts])


def expected_speedup(tokens: float, plain_seconds: float, drafted_seconds: float) -> float:
    """A step brings more tokens and takes longer. Above 1 it pays.

    >>> expected_speedup(tokens=2.0, plain_seconds=0.010, drafted_seconds=0.016)
    1.25
    """
    return tokens * plain_seconds / drafted_seconds


class AlwaysProposes:
    """A proposer that knows nothing: to see what it costs to ask, and to verify for nothing."""

    def __init__(self, *token_ids: int) -> None:
        self._token_ids = token_ids

    def propose(self, token_ids: Sequence[int], num_drafts: int) -> Sequence[int]:
        return self._token_ids[:num_drafts]


class ReadAloud:
    """A sampler that writes given texts, whatever the logits say.

    For a model with random weights: it computes all that a real one does, and its own words would mean nothing. What
    is drafted from a real text is then accepted as often as a model that knows the text would accept it.

    Args:
        answers: by the prompt's tokens, the tokens to write.
    """

    def __init__(self, answers: dict[tuple[int, ...], list[int]]) -> None:
        self._answers = answers

    def sample(
        self,
        logits: torch.Tensor,
        params: Sequence[SamplingParams],
        prompt_ids: Sequence[Sequence[int]],
        output_ids: Sequence[Sequence[int]],
        generators: Sequence[torch.Generator | None],
    ) -> SampledTokens:
        logits.argmax(-1)  # what a greedy sampler would do, and wait for
        answers = [self._answers[tuple(prompt)] for prompt in prompt_ids]
        tokens = [answer[len(done) % len(answer)] for answer, done in zip(answers, output_ids, strict=True)]
        return SampledTokens(tokens, [None] * len(tokens))
