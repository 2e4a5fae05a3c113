"""A draft model: a small model of the same vocabulary guesses what the large one will write."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from phase2_attention_kvcache.model.sampling import draw
from phase2_attention_kvcache.model.truncation import to_probs
from phase4_scheduler.engine.model_runner import ModelRunner, StepBatch
from phase4_scheduler.engine.scheduler import Scheduled
from phase4_scheduler.features.speculation.proposers import DraftInput, Drafts


class DraftModel:
    """Writes the next tokens of many requests, one step of the small model a token.

    It has a paged cache of its own, with the same blocks as the large model's: token t of a request lies in the same
    slot of both. So one block table serves both, and so does a prefix hit or a swap. What the large model rejects is
    written over by the next step, there as here. After a step of it that failed, the small model guesses from keys that
    were never written: that costs accepted tokens, and never a wrong one.

    Args:
        runner: the small model over its own cache.
        probabilistic: draw drafts from the model's distribution; False: take its likeliest tokens. For a greedy
            request, and for one with a seed, it is always the latter: what they answer must not depend on chance, or
            on nothing but the seed.

    Source: vllm/v1/spec_decode/draft_model.py.
    """

    def __init__(self, runner: ModelRunner, probabilistic: bool) -> None:
        self.runner = runner
        self._probabilistic = probabilistic

    @torch.inference_mode()
    def draft(self, inputs: Sequence[DraftInput]) -> list[Drafts]:
        """Drafts for each input. Their `token_ids` grow by what was drafted (but for the last draft)."""
        drafts = [Drafts([]) for _ in inputs]
        probs: list[list[Tensor]] = [[] for _ in inputs]
        # 1. Keep up: the small model reads what is new to it, prompts included.
        new = [(i, given) for i, given in enumerate(inputs) if len(given.token_ids) > given.num_computed]
        hidden, rows = self._run([given for _, given in new])
        guessing = [(i, row) for (i, given), row in zip(new, rows, strict=True) if given.num_drafts]
        # 2. Guess a token for each request, read it, guess the next.
        while guessing:
            logits = self.runner.logits(hidden, [row for _, row in guessing]).float()
            picked = self._pick(logits, [inputs[i] for i, _ in guessing])
            going: list[int] = []
            for (i, _), (token, q) in zip(guessing, picked, strict=True):
                if token is None:
                    continue
                drafts[i].token_ids.append(token)
                if q is not None:
                    probs[i].append(q)
                if len(drafts[i].token_ids) < inputs[i].num_drafts:
                    inputs[i].num_computed = len(inputs[i].token_ids)
                    inputs[i].token_ids.append(token)
                    going.append(i)
            hidden, rows = self._run([inputs[i] for i in going])
            guessing = list(zip(going, rows, strict=True))
        for answer, own in zip(drafts, probs, strict=True):
            answer.probs = torch.stack(own) if own else None
        return drafts

    def _run(self, inputs: Sequence[DraftInput]) -> tuple[Tensor, list[int]]:
        """Read the new tokens of each. Returns hidden [N, d_model], and the row of each input's last token."""
        if not inputs:
            return torch.empty(0), []
        counts = [len(given.token_ids) - given.num_computed for given in inputs]
        step = [Scheduled(given, n, given.num_computed) for given, n in zip(inputs, counts, strict=True)]
        batch = StepBatch.build(step, self.runner.kv_cache.block_size)
        return self.runner.execute(batch), [end - 1 for end in accumulate(counts)]

    def _pick(self, logits: Tensor, inputs: Sequence[DraftInput]) -> list[tuple[int | None, Tensor | None]]:
        """For each row a token (None: the numbers broke down), and the distribution it was drawn from, if it was."""
        best, likeliest = logits.max(-1)
        able = torch.isfinite(best).tolist()
        picked = [
            (token if fine else None, None) for token, fine in zip(likeliest.tolist(), able, strict=True)
        ]
        drawn = [i for i, given in enumerate(inputs) if able[i] and self._draws(given)]
        if drawn:
            rows = logits if len(drawn) == len(inputs) else logits[drawn]
            probs = to_probs(rows, [inputs[i].params for i in drawn])
            tokens = draw(probs, [None] * len(drawn), self.runner.generator)
            for i, token, q in zip(drawn, tokens.tolist(), probs, strict=True):
                picked[i] = token, q
        return picked

    def _draws(self, given: DraftInput) -> bool:
        return self._probabilistic and not given.params.greedy and given.params.seed is None
