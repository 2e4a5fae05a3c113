"""The scheduler: who computes how many tokens in the next step, and in which blocks.

Many users, one model. A step of the model takes a few hundred tokens, whoever they belong to. Before each
step somebody has to decide whose. That is all a scheduler does; it knows nothing of tensors.

Three limits rule it: the token budget of a step, the number of requests that may run at a time, and the
free blocks of the KV cache. Its rules, in the order in which they apply:

    1. Those who run go on, in their order. If the blocks run out, the last one to come is preempted.
    2. If nobody was preempted, those who wait are admitted from the head of the queue.
    3. A long prompt takes what is left of the budget, and the rest in later steps (chunked prefill).

The decisions equal those of the real vLLM 0.32, step by step, on 150 recorded workloads.

You will see a scheduler at work with nothing but numbers: a budget shared between a long prompt and short
answers, a preemption, and what each policy does with an urgent request.

Source: vllm/v1/core/sched/scheduler.py; Kwon et al. (2023), section 4.5; for chunked prefill, Agrawal et
al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve" (2024), section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from phase3_paged_attention.paging.block_manager import BlockManager
from phase3_paged_attention.paging.block_table import BlockCopy
from phase4_scheduler.engine.queues import FcfsQueue, PriorityQueue, WaitingQueue, urgency
from phase4_scheduler.engine.request import Request, RequestStatus


@dataclass(frozen=True)
class SchedulerConfig:
    """The limits of a step, and the rules of the house.

    Attributes:
        max_num_seqs: most requests that run at a time.
        max_num_batched_tokens: most tokens of a step: the token budget.
        max_model_len: most tokens of a request, prompt and answer together.
        chunked_prefill: whether a prompt may be computed in several steps.
        long_prefill_token_threshold: most tokens of one request in a step while others live; 0: no limit.
        policy: "fcfs" (first come, first served) or "priority" (the smallest number first).
        preemption: "recompute" (drop the blocks, compute the tokens again) or "swap" (move the blocks to
            main memory and back; recomputes if there is no room for them).
        admit_oversized: accept a request that can never finish in this cache. It will block the queue; only
            there to repeat recordings of engines that do so.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len: int = 1024
    chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    policy: str = "fcfs"
    preemption: str = "recompute"
    admit_oversized: bool = False

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be 1 or more")
        if self.long_prefill_token_threshold < 0:
            raise ValueError(
                f"long_prefill_token_threshold is {self.long_prefill_token_threshold}: 0 (no limit) or more"
            )
        for name, known in (("policy", ("fcfs", "priority")), ("preemption", ("recompute", "swap"))):
            if getattr(self, name) not in known:
                raise ValueError(f"unknown {name} {getattr(self, name)!r}: use {' or '.join(known)}")


@dataclass(slots=True)
class Scheduled:
    """A request's part in a step: tokens [num_computed, num_computed + num_tokens) go through the model."""

    request: Request
    num_tokens: int
    num_computed: int  # tokens computed before this step

    @property
    def samples(self) -> bool:
        """Whether this step computes its last token, so that the next one can be sampled."""
        return self.num_computed + self.num_tokens == len(self.request.token_ids)


@dataclass
class SchedulerOutput:
    """What a step has to do.

    Attributes:
        scheduled: who computes how much, in the order of the decisions.
        preempted: who had to make room.
        copies: blocks to copy, or to move to and from main memory, before anything is computed.
        num_batched_tokens: tokens of the step.
    """

    scheduled: list[Scheduled] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    num_batched_tokens: int = 0


class Scheduler:
    """Decides steps until nobody is left.

    >>> scheduler = Scheduler(SchedulerConfig(), BlockManager(num_blocks=100))
    >>> scheduler.add(Request("alice", [5, 6, 7], SamplingParams(max_tokens=1)))
    >>> output = scheduler.schedule()
    >>> finished = scheduler.update(output, [42])       # the token that the model answered
    """

    def __init__(self, config: SchedulerConfig, block_manager: BlockManager) -> None:
        self.config = config
        self.block_manager = block_manager
        self.waiting: WaitingQueue = PriorityQueue() if config.policy == "priority" else FcfsQueue()
        self.running: list[Request] = []
        self.num_preemptions = 0
        self._seats = 0  # taken by those who run

    # ------------------------------------------------------------------ coming and going

    @property
    def has_requests(self) -> bool:
        return bool(self.running) or len(self.waiting) > 0

    def add(self, request: Request) -> None:
        """Queue up a new request.

        Raises:
            ValueError: it could never be served: longer than the context, larger than the whole cache,
                or a prompt over the budget that may not be cut. The message names the limit.
        """
        if not self.config.admit_oversized:
            self._check_size(request)
        request.status = RequestStatus.WAITING
        self.waiting.push(request)

    def _check_size(self, request: Request) -> None:
        config, manager, prompt = self.config, self.block_manager, request.num_prompt_tokens
        if prompt >= config.max_model_len:
            raise ValueError(
                f"the prompt has {prompt:,} tokens, the context holds {config.max_model_len:,} with at least one "
                "of an answer: shorten the prompt"
            )
        if request.num_seats > config.max_num_seqs:
            raise ValueError(f"n is {request.num_seats}: at most max_num_seqs, {config.max_num_seqs}")
        longest = config.max_model_len
        if request.max_tokens is not None:
            longest = min(longest, prompt + request.max_tokens)
        stored = longest - 1  # nobody asks what follows the last token, so it is never computed
        room = (manager.num_blocks - 1) * manager.block_size
        if stored > room:
            raise ValueError(
                f"{prompt:,} prompt tokens and an answer of {longest - prompt:,} do not fit the KV cache of "
                f"{room:,} tokens: shorten the prompt, lower max_tokens, or raise num_blocks"
            )
        if not config.chunked_prefill and stored > config.max_num_batched_tokens:
            raise ValueError(
                f"{longest:,} tokens are over the budget of {config.max_num_batched_tokens:,} a step: allow "
                "chunked_prefill, or raise max_num_batched_tokens"
            )

    def fork(self, output: SchedulerOutput, parent: Request, child: Request) -> None:
        """Between `schedule` and `update`: let `child` go on from where `parent` is, in the same blocks.

        It joins the step, with no tokens of its own to compute, so that `update` takes a token for it.
        """
        child.block_table = self.block_manager.fork(parent.block_table)
        child.num_computed_tokens = parent.num_computed_tokens
        child.num_cached_tokens = parent.num_cached_tokens
        child.status = RequestStatus.RUNNING
        child.num_seats, parent.num_seats = 1, parent.num_seats - 1  # it had a seat all along
        self.running.append(child)
        output.scheduled.append(Scheduled(child, 0, child.num_computed_tokens))

    def finish(self, request: Request, reason: str) -> None:
        """End a request now, wherever it is: "abort", "error", or "stop" for a stop string."""
        if request.finished:
            return
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            self._seats -= request.num_seats
        else:
            self.waiting.remove(request)
        self._release(request, reason)

    def restart(self, request: Request) -> None:
        """Send a running request back to the head of the queue, to be computed from its first token on.

        For a step that came to nothing: what its blocks hold is not to be trusted, so nobody may hit them.
        """
        if request.status is not RequestStatus.RUNNING:
            return  # it ended or was sent back already
        self.running.remove(request)
        self._seats -= request.num_seats
        self.block_manager.uncache(request.block_table)
        self.block_manager.free(request.block_table)
        request.num_computed_tokens = 0
        request.status = RequestStatus.PREEMPTED
        self.waiting.put_back(request)

    def _release(self, request: Request, reason: str) -> None:
        self.block_manager.free(request.block_table)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason

    # ------------------------------------------------------------------ deciding a step

    def schedule(self) -> SchedulerOutput:
        """Decide the next step. Blocks are given out, and `num_computed_tokens` advances, right here."""
        output = SchedulerOutput()
        alone = len(self.running) + len(self.waiting) <= 1
        threshold = 0 if alone else self.config.long_prefill_token_threshold
        budget = self._schedule_running(output, self.config.max_num_batched_tokens, threshold)
        # Whoever was preempted is at the head of the queue; admitting others would take its blocks.
        if not output.preempted and len(self.waiting):
            budget = self._admit_waiting(output, budget, threshold)
        for s in output.scheduled:
            s.request.num_computed_tokens += s.num_tokens
        output.copies = self.block_manager.take_copies()
        output.num_batched_tokens = self.config.max_num_batched_tokens - budget
        return output

    def _schedule_running(self, output: SchedulerOutput, budget: int, threshold: int) -> int:
        """Rule 1. Returns what is left of the budget."""
        running, scheduled = self.running, output.scheduled
        allocate, longest = self.block_manager.allocate, self.config.max_model_len - 1
        index = 0
        while index < len(running) and budget > 0:
            request = running[index]
            computed = request.num_computed_tokens
            n = min(len(request.token_ids) - computed, budget, longest - computed)
            if threshold:
                n = min(n, threshold)
            if n <= 0:
                index += 1
                continue
            while not allocate(request.block_table, request.token_ids, computed + n):
                victim = self._preempt_one(output)
                if self.config.policy == "priority":
                    # Under this policy the victim may stand anywhere, even in this step already.
                    for i, s in enumerate(scheduled):
                        if s.request is victim:
                            budget += s.num_tokens
                            del scheduled[i]
                            index -= 1
                            break
                if victim is request:
                    return budget
            scheduled.append(Scheduled(request, n, computed))
            budget -= n
            index += 1
        return budget

    def _preempt_one(self, output: SchedulerOutput) -> Request:
        """Send the last one to come (or the least urgent) back to the queue, and take its blocks."""
        if self.config.policy == "priority":
            victim = max(self.running, key=urgency)
            self.running.remove(victim)
        else:
            victim = self.running.pop()
        self._seats -= victim.num_seats
        manager = self.block_manager
        # A victim of this very step: the blocks that it was to fill have their names already, and now nobody
        # will fill them.
        manager.uncache(victim.block_table, first=victim.num_computed_tokens // manager.block_size)
        if self.config.preemption == "swap" and manager.swap_out(victim.block_table):
            pass  # its keys and values survive, so everything computed stays computed
        else:
            manager.free(victim.block_table)
            victim.num_computed_tokens = 0
        victim.status = RequestStatus.PREEMPTED
        victim.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.put_back(victim)
        output.preempted.append(victim)
        return victim

    def _admit_waiting(self, output: SchedulerOutput, budget: int, threshold: int) -> int:
        """Rule 2. Returns what is left of the budget."""
        config, manager, waiting = self.config, self.block_manager, self.waiting
        while len(waiting) and budget > 0:
            request = waiting.head()
            if self._seats + request.num_seats > config.max_num_seqs:
                break
            table, tokens = request.block_table, request.token_ids
            swapped = bool(table.swap_blocks)
            prefix = [] if swapped or not request.reuse_prefix else manager.match_prefix(table, tokens)
            computed = request.num_computed_tokens if swapped else len(prefix) * manager.block_size
            n = len(tokens) - computed
            if threshold:
                n = min(n, threshold)
            if not config.chunked_prefill and n > budget:
                break  # it waits for a step of its own; nobody jumps the queue
            n = min(n, budget)
            # Admitted only if all of it would fit now. Otherwise prompts that are begun and cannot be ended
            # would take each other's blocks.
            if swapped and not manager.swap_in(table, must_fit=len(tokens)):
                break
            if not manager.allocate(table, tokens, computed + n, prefix, must_fit=len(tokens)):
                break
            waiting.remove(request)
            if request.status is RequestStatus.WAITING:
                request.num_cached_tokens = computed
            request.status = RequestStatus.RUNNING
            request.num_computed_tokens = computed
            self.running.append(request)
            self._seats += request.num_seats
            output.scheduled.append(Scheduled(request, n, computed))
            budget -= n
        return budget

    # ------------------------------------------------------------------ after the step

    def update(self, output: SchedulerOutput, token_ids: Sequence[int | None]) -> list[Request]:
        """Take in the tokens that the step sampled.

        Args:
            output: what `schedule` returned.
            token_ids: one for each entry of `output.scheduled`; None where nothing was sampled.

        Returns:
            Requests that ended, in order. Their blocks are free again.
        """
        finished: list[Request] = []
        longest = self.config.max_model_len
        for s, token in zip(output.scheduled, token_ids, strict=True):
            request = s.request
            if token is None or request.status is not RequestStatus.RUNNING:
                continue  # still in its prompt; or aborted while the step ran
            request.append(token)
            reason = self._why_stop(request, token, longest)
            if reason is not None:
                self._seats -= request.num_seats
                self._release(request, reason)
                finished.append(request)
        if finished:
            self.running = [r for r in self.running if r.status is RequestStatus.RUNNING]
        return finished

    @staticmethod
    def _why_stop(request: Request, token: int, longest: int) -> str | None:
        num_output = len(request.output_token_ids)
        if token in request.stop_token_ids and num_output >= request.min_tokens:
            # An ordinary end of text needs no reason.
            request.stop_reason = token if token in request.params.stop_token_ids else None
            return "stop"
        if num_output == request.max_tokens or len(request.token_ids) >= longest:
            return "length"
        return None
