"""Verifies the drafts of a step: each has a row of logits, and the rejection sampler says which are accepted."""

from collections.abc import Sequence

from torch import Tensor

from phase4_scheduler.engine.model_runner import ModelRunner, Sampled, StepBatch
from phase4_scheduler.features.speculation.rejection_sampler import RejectionSampler, Verified
from phase4_scheduler.features.speculation.scheduler import PADDING, Speculated


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
