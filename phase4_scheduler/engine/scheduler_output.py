"""What the scheduler decides for a step: which request computes how many tokens, and which blocks move."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from phase3_paged_attention.paging.block_table import BlockCopy
from phase4_scheduler.engine.request import Request

PADDING = -1  # a draft that matches no token


@dataclass(slots=True)
class Scheduled:
    """A request in a step: tokens [num_computed, num_computed + num_tokens) go through the model.

    The last of them are `drafts`, if there are any; PADDING among them is a place without a guess.
    """

    request: Request
    num_tokens: int
    num_computed: int  # tokens computed before this step
    drafts: Sequence[int] = ()
    num_accepted: int = 0  # drafts that stood, once the step is done

    @property
    def num_certain(self) -> int:
        """Tokens that are computed after this step for sure: all but its drafts."""
        return self.num_computed + self.num_tokens - len(self.drafts)

    @property
    def samples(self) -> bool:
        """Whether this step computes its last token, so that the next one can be sampled."""
        return self.num_certain == len(self.request.token_ids)

    def take_back_rejected(self, num_accepted: int) -> None:
        """Forget drafts that were computed and do not stand. Their slots are the next to be written to."""
        self.num_accepted = num_accepted
        num_rejected = len(self.drafts) - num_accepted
        self.request.num_computed_tokens -= num_rejected
        self.request.block_table.num_tokens -= num_rejected


@dataclass
class SchedulerOutput:
    """What a step has to do.

    Attributes:
        scheduled: which request computes how many tokens, in the order of the decisions.
        preempted: requests that had to make room.
        copies: blocks to copy, or to move to and from main memory, before anything is computed.
        num_batched_tokens: tokens of the step.
        kv_connector_metadata: what the scheduler side of a KV connector says to its worker side.
    """

    scheduled: list[Scheduled] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    num_batched_tokens: int = 0
    kv_connector_metadata: Any = None
