"""The scheduler decides how many tokens of each request the next step computes, and in which blocks their keys and values go.

Three limits: the token budget of a step, the number of sequences that run, the free blocks of the KV cache. Three rules:

    1. RUNNING requests continue, in order. If the blocks run out, the policy's victim is preempted.
    2. If none was preempted, WAITING requests are admitted from the head of the queue.
    3. A prompt longer than the rest of the budget is computed in chunks (chunked prefill).

It handles no tensors. Its decisions match those of the real vLLM 0.32, step by step, in 150 recorded workloads.

Source: vllm/v1/core/sched/scheduler.py; Kwon et al. (2023), section 4.5; for chunked prefill, Agrawal et al., "Taming
Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve" (2024), section 4.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from phase3_paged_attention.paging.block_allocator import PhysicalBlock
from phase3_paged_attention.paging.block_manager import BlockManager
from phase4_scheduler.engine.config import SchedulerConfig
from phase4_scheduler.engine.policy import find_policy
from phase4_scheduler.engine.request import Request, RequestLimits, RequestStatus


@dataclass(slots=True)
class Scheduled:
    """A request in a step: tokens [num_computed, num_computed + num_tokens) go through the model."""

    request: Request
    num_tokens: int
    num_computed: int  # tokens computed before this step
    block_ids: list[int] = field(init=False)  # the step keeps them if another thread aborts the request

    def __post_init__(self) -> None:
        self.block_ids = self.request.block_table.block_ids

    @property
    def samples(self) -> bool:
        """Whether the step computes the request's last token, so that the next one can be sampled."""
        return self.num_computed + self.num_tokens == len(self.request.token_ids)

    @property
    def token_ids(self) -> list[int]:
        """The tokens that go through the model."""
        return self.request.token_ids[self.num_computed : self.num_computed + self.num_tokens]

    @property
    def cost(self) -> int:
        """Tokens of the budget that this request uses."""
        return self.num_tokens


@dataclass
class SchedulerOutput:
    """A step: what is computed, in the order of the decisions; which requests were preempted; what is left of the budget."""

    budget: int = 0
    scheduled: list[Scheduled] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)

    def drop(self, request: Request) -> None:
        """Take a request out of the step again, if it is in it."""
        for i, s in enumerate(self.scheduled):
            if s.request is request:
                self.budget += s.cost
                del self.scheduled[i]
                return


class Scheduler:
    """Plans steps until no request is left.

    >>> scheduler = Scheduler(SchedulerConfig(), BlockManager(num_blocks=100))
    >>> scheduler.add(Request("alice", [5, 6, 7], SamplingParams(max_tokens=1)))
    >>> output = scheduler.schedule()
    >>> finished = scheduler.update(output, [[42]])       # the token that was sampled
    """

    def __init__(self, config: SchedulerConfig, block_manager: BlockManager) -> None:
        self.config, self.block_manager = config, block_manager
        # None: as many tokens as the cache holds, and one more, since the last one is never stored.
        room = (block_manager.num_blocks - 1) * block_manager.block_size
        self.max_model_len = room + 1 if config.max_model_len is None else config.max_model_len
        self.waiting = self.policy = find_policy(config.policy)()
        self.running: list[Request] = []
        self._threshold = 0  # the most tokens per request in this step; 0: no limit

    # ------------------------------------------------------------------ deciding a step

    def schedule(self) -> SchedulerOutput:
        """Decide the next step. Blocks are allocated, and `num_computed_tokens` advances, before the model runs."""
        output = SchedulerOutput(self.config.max_num_batched_tokens)
        alone = len(self.running) + self.num_waiting <= 1
        self._threshold = 0 if alone else self.config.long_prefill_token_threshold
        self.schedule_running(output)
        # An admission would take the blocks that were just freed for running requests.
        if not output.preempted:
            self.admit_waiting(output)
        for s in output.scheduled:
            s.request.num_computed_tokens += s.num_tokens
        return output

    def schedule_running(self, output: SchedulerOutput) -> None:
        """Rule 1: running requests in their order; if blocks run out, one request is preempted."""
        for request in list(self.running):
            room = self.room(output)
            if room <= 0:
                return
            if request.status is not RequestStatus.RUNNING:
                continue  # preempted earlier in this step
            computed = request.num_computed_tokens
            n = min(self.tokens_to_compute(request, computed), room)
            if n <= 0:
                continue
            while not self.reserve(request, computed + n):
                victim = self.policy.victim(self.running)
                self.running.remove(victim)
                output.drop(victim)
                output.preempted.append(victim)
                self.preempt(victim)
                if victim is request:
                    return
            self.add_to_step(output, request, n, computed)

    def admit_waiting(self, output: SchedulerOutput) -> None:
        """Rules 2 and 3: admit waiting requests as far as the budget, `max_num_seqs` and the free blocks allow."""
        for request in self.candidates(output):  # the head of the queue, until `admit` removes it
            computed, prefix = self.find_computed(request)
            n, room = self.tokens_to_compute(request, computed), self.room(output)
            if n > room and not self.may_be_cut(request, computed, n):
                return  # it waits for a step of its own; the queue keeps its order
            n = min(n, room)
            # All of it must fit now: prompts that begin and cannot end would take each other's blocks.
            if not self.reserve(request, computed + n, prefix, must_fit=request.num_tokens):
                return
            self.admit(request, computed)
            self.add_to_step(output, request, n, computed)

    def update(self, output: SchedulerOutput, token_ids: Sequence[Sequence[int]]) -> list[Request]:
        """Append the sampled tokens.

        Args:
            token_ids: the sampled tokens for each entry of `output.scheduled`; empty where nothing was sampled.

        Returns:
            The requests that finished, in order. Their blocks are free again.
        """
        finished = []
        for s, tokens in zip(output.scheduled, token_ids, strict=True):
            request = s.request
            if not tokens or request.finished:
                continue  # in the middle of its prompt, or it ended while the step ran
            for token in self.accept(s, tokens):
                request.append(token)
                if reason := self.check_stop(request, token):
                    self.finish(request, reason)
                    finished.append(request)
                    break
        return finished

    # ------------------------------------------------------------------ hooks: what an extension may override

    def room(self, output: SchedulerOutput) -> int:
        """Tokens of the budget that are left in this step."""
        return output.budget

    def tokens_to_compute(self, request: Request, computed: int) -> int:
        """Tokens that a request lacks (a whole prompt, or the one sampled last), up to the limit per request."""
        missing = len(request.token_ids) - computed
        return min(missing, self._threshold) if self._threshold else missing

    def candidates(self, output: SchedulerOutput) -> Iterator[Request]:
        """Waiting requests in the order of admission, while the step and the batch have room."""
        while len(self.waiting) and not self.is_full(output):
            yield self.waiting.head()

    def is_full(self, output: SchedulerOutput) -> bool:
        return len(self.running) >= self.config.max_num_seqs or self.room(output) <= 0

    def find_computed(self, request: Request) -> tuple[int, Sequence[PhysicalBlock]]:
        """Tokens whose keys and values exist already, and the cached blocks that hold them."""
        if request.skip_reading_prefix_cache:
            return 0, ()
        prefix = self.block_manager.match_prefix(request.block_table, request.token_ids)
        return len(prefix) * self.block_manager.block_size, prefix

    def may_be_cut(self, request: Request, computed: int, n: int) -> bool:
        """Rule 3: whether a request may be admitted with a part of its `n` tokens."""
        return self.config.chunked_prefill

    def reserve(
        self, request: Request, num_tokens: int, prefix: Sequence[PhysicalBlock] = (), must_fit: int = 0
    ) -> bool:
        """Blocks for the first `num_tokens` tokens. False: too few are free, and nothing changed. See `BlockManager.reserve`."""
        manager, table, extent = self.block_manager, request.block_table, self.extent(num_tokens)
        if not manager.reserve(table, extent, prefix, max(must_fit, extent) if must_fit else 0):
            return False
        table.num_tokens = num_tokens  # not `extent`: the slots behind hold no token of the request yet
        manager.cache_blocks(table, request.token_ids, num_tokens)
        return True

    def extent(self, num_tokens: int) -> int:
        """Tokens that a request's blocks must hold in a step after which this many are computed. An extension may need more."""
        return num_tokens

    def admit(self, request: Request, computed: int) -> None:
        """Move a request from the queue to RUNNING, with this many tokens computed."""
        self.remove(request)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = computed
        if not request.num_preemptions:
            request.num_cached_tokens = computed
        self.running.append(request)

    def add_to_step(self, output: SchedulerOutput, request: Request, n: int, computed: int) -> None:
        output.scheduled.append(Scheduled(request, n, computed))
        output.budget -= n

    def accept(self, s: Scheduled, tokens: Sequence[int]) -> Sequence[int]:
        """The tokens to append after a step."""
        return tokens

    def preempt(self, victim: Request) -> None:
        """Return a request, already removed from `running`, to the queue without its blocks."""
        # Blocks that this very step was to fill have hashes already, and will not be filled. (vLLM 0.32 leaves them.)
        manager = self.block_manager
        manager.uncache(victim.block_table, first=victim.num_computed_tokens // manager.block_size)
        self.forget_computed(victim)
        victim.num_preemptions += 1
        victim.status = RequestStatus.PREEMPTED
        self.waiting.put_back(victim)

    def forget_computed(self, victim: Request) -> None:
        """Free a victim's blocks; its tokens will be computed again."""
        self.block_manager.free(victim.block_table)
        victim.num_computed_tokens = 0

    def release(self, request: Request) -> None:
        """Free the blocks of a finished request."""
        self.block_manager.free(request.block_table)

    # ------------------------------------------------------------------ coming and going

    @property
    def has_requests(self) -> bool:
        return bool(self.running) or self.num_waiting > 0

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    @property
    def waits_for_others(self) -> bool:
        """Whether a step may compute nothing because its requests wait for an extension."""
        return False

    @property
    def limits(self) -> RequestLimits:
        """How long a request may be."""
        step_tokens = None if self.config.chunked_prefill else self.config.max_num_batched_tokens
        return RequestLimits(self.max_model_len, self.block_manager.max_tokens, step_tokens)

    def add(self, request: Request) -> None:
        """Queue up a new request.

        Raises:
            ValueError: it could never be served (see `RequestLimits`).
        """
        self.limits.check(request.num_prompt_tokens, request.max_tokens)
        request.status = RequestStatus.WAITING
        self.waiting.push(request)

    def finish(self, request: Request, reason: str) -> None:
        """End a request in any state, with the reason "stop", "length", "abort" or "error"."""
        if not request.finished:
            self.remove(request)
            request.finish_reason = reason
            self.release(request)
            request.status = RequestStatus.FINISHED

    def remove(self, request: Request) -> None:
        """Take a request out of the queue it is in."""
        (self.running if request.status is RequestStatus.RUNNING else self.waiting).remove(request)

    def check_stop(self, request: Request, token: int) -> str | None:
        """Why a request ends with the token it has just got, if it does."""
        num_output = len(request.output_token_ids)
        if token in request.stop_token_ids and num_output >= request.min_tokens:
            # An ordinary end of text needs no reason.
            request.stop_reason = None if token in request.eos_token_ids else token
            return "stop"
        if num_output == request.max_tokens or len(request.token_ids) >= self.max_model_len:
            return "length"
        return None
