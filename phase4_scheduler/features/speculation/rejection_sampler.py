"""Verifies draft tokens so that the answer is distributed exactly as without them.

The model has computed a row of logits behind each draft, and one before the first. Row j says what the model thinks of
the place of draft j, given all drafts before it; so it counts only as long as those are accepted.

    text so far     drafts           rows
    the cat         sat  on  a       after "cat", after "sat", after "on", after "a"
                     |   |   |         |
                     x   x   -         the drafts "sat" and "on" are accepted, "a" is rejected: the row after "on" gives the
                                       token in its place. Three tokens for one step of the model.

If every draft is accepted, the last row gives one more token (the bonus token): a step never brings fewer than one.

Sources: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023), algorithm 1 and appendix
A.1; Chen et al. (2023); vllm/v1/sample/rejection_sampler.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from phase2_attention_kvcache.model.logprobs import report_logprobs
from phase2_attention_kvcache.model.sampling import Sampler, draw
from phase4_scheduler.engine.model_runner import ModelRunner, Sampled, StepBatch
from phase4_scheduler.engine.request import Request
from phase4_scheduler.features.speculation.scheduler import PADDING, Speculated


def verify_drafts(
    p: Tensor, q: Tensor, drafts: Sequence[int], generator: torch.Generator | None = None
) -> list[int]:
    """The accepted drafts and one more token, for drafts that were sampled from distributions q.

    A draft x is accepted with probability min(1, p(x) / q(x)). If it does not, the token in its place is drawn from what p
    has more than q, max(p - q, 0). Together that makes p exactly, whatever q is:

        P(x) = q(x) min(1, p(x) / q(x))  +  P(rejected) max(p(x) - q(x), 0) / sum(max(p - q, 0))
             = min(q(x), p(x))           +  max(p(x) - q(x), 0)                                    = p(x)

    since what is rejected, 1 - sum(min(p, q)), is what p has more than q in all.

    Args:
        p: [k + 1, vocab], what the model would draw from, at each place.
        q: [k, vocab], what each draft was drawn from.
        drafts: k token ids.
        generator: of the random numbers; None: torch's own.

    Returns:
        1 to k + 1 token ids.
    """
    places = torch.arange(len(drafts), device=p.device)
    ids = torch.tensor(drafts, device=p.device)
    ratios = p[places, ids].double() / q[places, ids].double()
    # One for each draft, none used twice.
    points = torch.rand(len(drafts), dtype=torch.float64, generator=generator)
    accepted = (points < ratios.cpu()).tolist()
    num_accepted = accepted.index(False) if False in accepted else len(drafts)
    weights = p[num_accepted]
    if num_accepted < len(drafts):
        left = (weights - q[num_accepted]).clamp(min=0)
        # Nothing is left where p and q differ by rounding only. Then either will do.
        weights = left if left.any() else weights
    return [*drafts[:num_accepted], *draw(weights[None], [None], generator).tolist()]


def matching_drafts(tokens: Sequence[int], drafts: Sequence[int]) -> list[int]:
    """The accepted drafts and one more token, for deterministic drafts (q is a single 1).

    The model picks a token at each place as it always does: the likeliest one, or one drawn from p. A draft is accepted if
    the model picked the same. That is the rule above: the draft is picked with probability p, and what is picked instead
    is distributed like p without the draft. The picks before the first that differs are those of a run without drafts,
    to the random number.

    Args:
        tokens: k + 1 picks. drafts: k guesses.

    >>> matching_drafts([5, 8, 2], drafts=[5, 9])
    [5, 8]
    """
    num_accepted = 0
    while num_accepted < len(drafts) and drafts[num_accepted] == tokens[num_accepted]:
        num_accepted += 1
    return list(tokens[: num_accepted + 1])


@dataclass
class Verified:
    """A request in a step that verifies drafts: k of them, or none. It has 1 + k rows of logits.

    Attributes:
        probs: [k, vocab], what the drafts were drawn from; None: they were chosen without chance.
    """

    request: Request
    drafts: Sequence[int]
    probs: Tensor | None

    @property
    def num_rows(self) -> int:
        return 1 + len(self.drafts)


class RejectionSampler:
    """Verifies the drafts of a step, for each request with its own parameters: penalties, temperature, top-k, ...

    Row j of a request is sampled as if its drafts before j were the answer so far, by the ordinary sampler. So whatever
    that can do, this can.
    """

    verify = staticmethod(verify_drafts)

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def sample(self, logits: Tensor, step: Sequence[Verified]) -> list[Sampled]:
        """Tokens for each request: the accepted drafts and one more. logits: [N, vocab], one row after the other."""
        answers = [Sampled()] * len(step)
        starts = [0, *accumulate(v.num_rows for v in step)]
        for verify, drawn in ((self._match, False), (self._accept_or_redraw, True)):
            group = [i for i, v in enumerate(step) if (v.probs is not None) is drawn]
            if group:
                rows = [row for i in group for row in range(starts[i], starts[i + 1])]
                own = logits if len(rows) == len(logits) else logits[rows]
                for i, answer in zip(group, verify(own, [step[i] for i in group]), strict=True):
                    answers[i] = answer
        return answers

    def _match(self, logits: Tensor, step: Sequence[Verified]) -> list[Sampled]:
        seeded = [v.request.generator for v in step if v.request.generator is not None and v.drafts]
        states = [generator.get_state() for generator in seeded]
        generators = [v.request.generator for v in step for _ in range(v.num_rows)]
        picked = self._sampler.sample(logits, *_what_rows_see(step), generators)
        for generator, state in zip(seeded, states, strict=True):
            generator.set_state(state)
        answers, start = [], 0
        for v in step:
            tokens = matching_drafts(picked.token_ids[start : start + v.num_rows], v.drafts)
            answers.append(Sampled(tokens, picked.logprobs[start : start + len(tokens)]))
            start += v.num_rows
            # Each token of the answer takes one random number.
            if v.request.generator is not None and v.drafts:
                torch.rand(len(tokens), dtype=torch.float64, generator=v.request.generator)
        return answers

    def _accept_or_redraw(self, logits: Tensor, step: Sequence[Verified]) -> list[Sampled]:
        probs = self._sampler.probabilities(logits, *_what_rows_see(step))
        answers, start = [], 0
        for v in step:
            tokens = self.verify(
                probs[start : start + v.num_rows], v.probs, v.drafts, self._sampler.generator
            )
            own = logits[start : start + len(tokens)]
            reports = report_logprobs(own, [v.request.params] * len(tokens), tokens)
            answers.append(Sampled(tokens, reports))
            start += v.num_rows
        return answers


def _what_rows_see(step: Sequence[Verified]) -> tuple[list, list, list]:
    """For each row the parameters, the prompt, and the answer so far: drafts before it included."""
    rows = [(v.request, v.drafts[:j]) for v in step for j in range(v.num_rows)]
    outputs = [[*r.output_token_ids, *before] if before else r.output_token_ids for r, before in rows]
    return [r.params for r, _ in rows], [r.prompt_token_ids for r, _ in rows], outputs


class SpeculativeRunner(ModelRunner):
    """Attributes: rejection_sampler: its class."""

    rejection_sampler = RejectionSampler

    def sample(self, scheduled: Sequence[Speculated], batch: StepBatch, hidden: Tensor) -> list[Sampled]:
        step, rows, ready = [], [], []
        for i, s in enumerate(scheduled):
            if s.samples:
                drafts = [token for token in s.drafts.token_ids if token != PADDING]
                probs = s.drafts.probs if drafts else None
                verified = Verified(s.request, drafts, probs)
                first = batch.first_rows[i] + s.num_tokens - len(s.drafts.token_ids) - 1
                rows += range(first, first + verified.num_rows)
                step.append(verified)
                ready.append(i)
        results = [Sampled()] * len(scheduled)
        if ready:
            answers = self.rejection_sampler(self.sampler).sample(self.logits(hidden, rows), step)
            for i, answer in zip(ready, answers, strict=True):
                results[i] = answer
        return results
