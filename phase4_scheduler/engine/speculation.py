"""Speculative decoding in the engine: after each step drafts for the next one, and the counts of how they fared."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

from phase4_scheduler.engine.fault_isolation import reason
from phase4_scheduler.engine.model_runner import ModelRunnerOutput
from phase4_scheduler.engine.proposers import Drafter, DraftInput
from phase4_scheduler.engine.scheduler_output import PADDING, Scheduled, SchedulerOutput

# Requests that verify drafts in one step from which on the engine warns. A reminder, not a measured limit: where drafts
# begin to lose depends on the machine and the two models. `speculative_decoding.py` measures it; on two cores tales-draft
# paid at no load at all, and each further user made it worse (figures/speculative_decoding.png).
WARNS_FROM = 16


@dataclass
class SpecDecodingStats:
    """Counts since the start. A draft, in the singular, is what one request verifies in one step.

    Source: vllm/v1/spec_decode/metrics.py.
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, num_speculative_tokens: int) -> "SpecDecodingStats":
        return cls(num_accepted_tokens_per_pos=[0] * num_speculative_tokens)

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens that a step brought to a request with drafts: those accepted, and one more. 1 without any drafts."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 1.0

    def observe(self, num_drafts: int, num_accepted: int) -> None:
        """Count a request that had drafts verified in a step."""
        self.num_drafts += 1
        self.num_draft_tokens += num_drafts
        self.num_accepted_tokens += num_accepted
        for position in range(num_accepted):
            self.num_accepted_tokens_per_pos[position] += 1


class Speculation:
    """Has drafts made for the requests of a step, within what each can use.

    Args:
        drafter: makes them.
        num_speculative_tokens: most for a request in a step.
        max_model_len: most tokens of a request.
    """

    def __init__(self, drafter: Drafter, num_speculative_tokens: int, max_model_len: int) -> None:
        self.drafter = drafter
        self._most, self._max_model_len = num_speculative_tokens, max_model_len
        self.stats = SpecDecodingStats.of(num_speculative_tokens)
        self._warned = False

    def draft(self, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        """Count what became of this step's drafts, and leave new ones with each request, in `spec_token_ids`.

        Before the scheduler takes in what was sampled: requests that end still hold their blocks, and a draft model must
        have read all that those will be remembered for.
        """
        self._count(output.scheduled, result)
        step = [s for s in output.scheduled if s.num_tokens and s.request.request_id in result.first_row]
        inputs = [self._input(s, result) for s in step]
        try:
            found = self.drafter.draft(inputs, output.copies)
        except Exception as error:  # a guess is no more than that: the requests go on without
            warnings.warn(f"no drafts in this step: the drafter failed ({reason(error)})", stacklevel=2)
            return
        for s, drafts in zip(step, found, strict=True):
            s.request.spec_token_ids, s.request.draft_probs = drafts.token_ids, drafts.probs

    def _input(self, s: Scheduled, result: ModelRunnerOutput) -> DraftInput:
        request = s.request
        sampled, _ = result.sampled.get(request.request_id, ([], []))
        token_ids = [*request.token_ids[: s.num_certain], *sampled]
        longest = self._max_model_len
        if request.max_tokens is not None:
            longest = min(longest, request.num_prompt_tokens + request.max_tokens)
        useful = longest - len(token_ids) - 1  # the step that verifies them brings one token by itself
        num_drafts = max(0, min(self._most, useful)) if sampled else 0
        return DraftInput(
            request.request_id, token_ids, s.num_computed, num_drafts, request.params, request.block_table
        )

    def _count(self, scheduled: Sequence[Scheduled], result: ModelRunnerOutput) -> None:
        verifying = 0
        for s in scheduled:
            sampled, _ = result.sampled.get(s.request.request_id, ([], []))
            if sampled and s.drafts and s.drafts[0] != PADDING:
                self.stats.observe(len(s.drafts), len(sampled) - 1)
                verifying += 1
        if verifying >= WARNS_FROM and not self._warned:
            self._warned = True
            warnings.warn(
                f"{verifying} requests verify drafts in one step: they share its time, and drafts that fall take it from all. "
                "Lower num_speculative_tokens, or leave speculative_config out, if that makes them faster "
                "(phase4_scheduler/speculative_decoding.py measures it on your machine)",
                stacklevel=4,
            )
