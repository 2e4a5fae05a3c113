"""A draft model: a small model of the same vocabulary guesses what the large one will write."""

from collections.abc import Sequence

import torch
from torch import Tensor

from phase2_attention_kvcache.model.sampling import draw
from phase2_attention_kvcache.model.truncation import to_probs
from phase3_paged_attention.paging.block_table import BlockCopy
from phase4_scheduler.engine.model_runner import ModelRunner
from phase4_scheduler.engine.proposers import DraftInput, Drafts
from phase4_scheduler.engine.scheduler_output import Scheduled


class DraftModel:
    """Writes the next tokens of many requests, one step of the small model a token.

    It has a paged cache of its own, with the same blocks as the large model's: token t of a request lies in the same
    slot of both. So one block table serves both, and a prefix hit, a copy or a swap is one for both. What the large
    model rejects is written over by the next step, there as here.

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
    def draft(self, inputs: Sequence[DraftInput], copies: Sequence[BlockCopy]) -> list[Drafts]:
        """Drafts for each input. Their `token_ids` grow by what was drafted (but for the last draft)."""
        self.runner.kv_cache.apply_copies(copies)
        drafts = [Drafts([]) for _ in inputs]
        probs: list[list[Tensor]] = [[] for _ in inputs]
        # 1. Keep up: the small model reads what is new to it, prompts included.
        new = [(i, given) for i, given in enumerate(inputs) if len(given.token_ids) > given.num_computed]
        hidden, rows = self._run([given for _, given in new])
        guessing = [(i, row) for (i, given), row in zip(new, rows, strict=True) if given.num_drafts]
        # 2. Guess a token for each request, read it, guess the next.
        while guessing:
            logits = self.runner.logits(hidden, [row for _, row in guessing]).float()
            able = torch.isfinite(logits.amax(-1)).tolist()  # NaN: it broke down, and has nothing to say
            tokens, q = self._pick(logits, [inputs[i] for i, _ in guessing])
            going: list[int] = []
            for (i, _), token, own_q, fine in zip(guessing, tokens, q, able, strict=True):
                if not fine:
                    continue
                drafts[i].token_ids.append(token)
                if own_q is not None:
                    probs[i].append(own_q)
                if len(drafts[i].token_ids) < inputs[i].num_drafts:
                    inputs[i].num_computed = len(inputs[i].token_ids)
                    inputs[i].token_ids.append(token)
                    going.append(i)
            if going:
                hidden, rows = self._run([inputs[i] for i in going])
            guessing = list(zip(going, rows, strict=True)) if going else []
        for answer, own in zip(drafts, probs, strict=True):
            answer.probs = torch.stack(own) if own else None
        return drafts

    def _run(self, inputs: Sequence[DraftInput]) -> tuple[Tensor, list[int]]:
        """Read the new tokens of each. Returns hidden [N, d_model], and the row of each input's last token."""
        if not inputs:
            return torch.empty(0), []
        counts = [len(given.token_ids) - given.num_computed for given in inputs]
        step = [Scheduled(given, n, given.num_computed) for given, n in zip(inputs, counts, strict=True)]
        ends = torch.tensor(counts).cumsum(0) - 1
        return self.runner.execute(step), ends.tolist()

    def _pick(self, logits: Tensor, inputs: Sequence[DraftInput]) -> tuple[list[int], list[Tensor | None]]:
        """A token for each row, and the distribution it was drawn from, if it was."""
        tokens, q = logits.argmax(-1).tolist(), [None] * len(inputs)
        drawn = [i for i, given in enumerate(inputs) if self._draws(given)]
        if drawn:
            probs = to_probs(logits[drawn], [inputs[i].params for i in drawn])
            for i, token, own in zip(drawn, draw(probs, [None] * len(drawn)), probs, strict=True):
                tokens[i], q[i] = token, own
        return tokens, q

    def _draws(self, given: DraftInput) -> bool:
        return self._probabilistic and not given.params.greedy and given.params.seed is None
