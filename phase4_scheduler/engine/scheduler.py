"""The scheduler: which request computes how many tokens in the next step, and in which blocks.

Many requests, one model. A step of the model takes a few hundred tokens, of any requests. The scheduler decides of
which. It knows nothing of tensors.

Three limits rule it: the token budget of a step, the number of sequences that may run at a time, and the
free blocks of the KV cache. Its rules, in the order in which they apply:

    1. RUNNING requests go on, in their order. If the blocks run out, the last one to come is preempted.
    2. If none was preempted, WAITING requests are admitted from the head of the queue.
    3. A long prompt takes what is left of the budget, and the rest in later steps (chunked prefill).

With speculative decoding a request brings drafts: guesses of the tokens behind its last one. They are scheduled like
tokens that it has, and the step tells which of them stand. The others are taken back in `update`.

With a KV connector, keys and values may also come from another engine. A request waits for them beside all others
(`remote_kvs.py`).

The decisions equal those of the real vLLM 0.32, step by step, on 150 recorded workloads, on 120 with drafts, and on 60
with a connector.

Source: vllm/v1/core/sched/scheduler.py; Kwon et al. (2023), section 4.5; for chunked prefill, Agrawal et
al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve" (2024), section 4.
"""

from collections.abc import Sequence

from phase3_paged_attention.paging.block_manager import BlockManager
from phase4_scheduler.engine.admission import check_size
from phase4_scheduler.engine.config import SchedulerConfig
from phase4_scheduler.engine.kv_connector import KVConnector, KVConnectorOutput
from phase4_scheduler.engine.queues import FcfsQueue, PriorityQueue, WaitingQueue, urgency
from phase4_scheduler.engine.remote_kvs import RemoteKVs
from phase4_scheduler.engine.request import Request, RequestStatus
from phase4_scheduler.engine.scheduler_output import PADDING, Scheduled, SchedulerOutput


class Scheduler:
    """Decides steps until no request is left.

    Args:
        admit_oversized: accept a request that can never finish in this cache. It will block the queue; only
            there to repeat recordings of engines that do so.
        connector: moves keys and values from and to other engines; None: there are none.

    >>> scheduler = Scheduler(SchedulerConfig(), BlockManager(num_blocks=100))
    >>> scheduler.add(Request("alice", [5, 6, 7], SamplingParams(max_tokens=1)))
    >>> output = scheduler.schedule()
    >>> finished = scheduler.update(output, [42])       # the token that the model answered
    """

    def __init__(
        self,
        config: SchedulerConfig,
        block_manager: BlockManager,
        admit_oversized: bool = False,
        connector: KVConnector | None = None,
    ) -> None:
        self.config = config
        self.admit_oversized = admit_oversized
        speculation = config.speculative_config
        self.num_speculative_tokens = speculation.num_speculative_tokens if speculation else 0
        self._draft_slots = speculation.num_draft_slots if speculation else 0
        # None: as many tokens as the cache holds, and one more, since the last one is never stored (unless by a
        # draft model).
        room = (block_manager.num_blocks - 1) * block_manager.block_size
        longest = room + 1 - self._draft_slots
        self.max_model_len = longest if config.max_model_len is None else config.max_model_len
        self.block_manager = block_manager
        make_queue = PriorityQueue if config.policy == "priority" else FcfsQueue
        self.waiting: WaitingQueue = make_queue()
        self.holding: WaitingQueue = make_queue()  # waits as well, but with blocks that a connector fills
        self.running: list[Request] = []
        self.connector, self.remote_kvs = connector, None
        if connector is not None:
            if speculation:
                raise ValueError("drafts and a KV connector do not go together here: leave one of them out")
            self.remote_kvs = RemoteKVs(connector, block_manager, self.holding, self.max_model_len)
        self.num_preemptions = 0
        self.prefix_queries = 0  # prompt tokens looked up in the prefix cache; not again after a preemption
        self.prefix_hits = 0  # and those of them that were found

    @property
    def has_requests(self) -> bool:
        return bool(self.running) or len(self.waiting) > 0 or self.is_transferring

    @property
    def is_transferring(self) -> bool:
        """Whether blocks are on their way, so that a step that computes nothing is no sign of trouble."""
        return self.remote_kvs is not None and self.remote_kvs.is_busy

    @property
    def num_running_seqs(self) -> int:
        """Sequences that run. One request with n = 3 counts 3 times, also before its sequences fork."""
        return sum(request.num_seqs for request in self.running)

    @property
    def prefill_threshold(self) -> int:
        """Most tokens of one request in the next step; 0: no limit, as for a request that is alone."""
        alone = len(self.running) + len(self.waiting) + len(self.holding) <= 1
        return 0 if alone else self.config.long_prefill_token_threshold

    # ------------------------------------------------------------------ deciding a step

    def schedule(self) -> SchedulerOutput:
        """Decide the next step. Blocks are given out, and `num_computed_tokens` advances, right here."""
        output = SchedulerOutput()
        threshold = self.prefill_threshold
        budget = self._schedule_running(output, self.config.max_num_batched_tokens, threshold)
        # A preempted request is at the head of the queue; admitting others would take its blocks.
        if not output.preempted and (len(self.waiting) or len(self.holding)):
            self.admit_waiting(output, budget, threshold)
        for s in output.scheduled:
            s.request.num_computed_tokens += s.num_tokens
            output.num_batched_tokens += s.num_tokens
        if self.num_speculative_tokens:
            for s in output.scheduled:
                s.request.is_prefill_chunk = not s.samples
        output.copies = self.block_manager.take_copies()
        if self.remote_kvs is not None:
            self.remote_kvs.inflight_prefills -= {s.request for s in output.scheduled if s.samples}
            output.kv_connector_metadata = self.connector.build_connector_meta(output)
        return output

    def _schedule_running(self, output: SchedulerOutput, budget: int, threshold: int) -> int:
        """Rule 1. Returns what is left of the budget."""
        running, scheduled, slots = self.running, output.scheduled, self._draft_slots
        allocate, longest = self.block_manager.allocate, self.max_model_len - 1
        index = 0
        while index < len(running) and budget > slots:
            request = running[index]
            computed, drafts = request.num_computed_tokens, request.spec_token_ids
            missing = len(request.token_ids) - computed
            n = min(missing + len(drafts), budget - slots, longest - computed)
            if threshold:
                n = min(n, threshold)
            if n <= 0:
                index += 1
                continue
            ahead = self._lookahead(computed + n) if slots else 0
            while not allocate(request.block_table, request.token_ids, computed + n, num_lookahead=ahead):
                victim = self.preempt_one(output)
                if self.config.policy == "priority":
                    # Under this policy the victim may stand anywhere, even in this step already.
                    for i, s in enumerate(scheduled):
                        if s.request is victim:
                            budget += s.num_tokens + slots
                            del scheduled[i]
                            index -= 1
                            break
                if victim is request:
                    return budget
            if drafts:
                drafts, request.spec_token_ids = drafts[: max(0, n - missing)], []
            scheduled.append(Scheduled(request, n, computed, drafts))
            budget -= n + slots
            index += 1
        return budget

    def _lookahead(self, num_tokens: int) -> int:
        """Slots behind this many tokens, for what a draft model guesses: it stores their keys and values as well."""
        return min(self.num_speculative_tokens, self.max_model_len - num_tokens)

    def preempt_one(self, output: SchedulerOutput) -> Request:
        """Send the last one to come (or the least urgent) back to the queue, and take its blocks."""
        if self.config.policy == "priority":
            victim = max(self.running, key=urgency)
            self.running.remove(victim)
        else:
            victim = self.running.pop()
        manager = self.block_manager
        # A victim of this very step: the blocks that it was to fill have their hashes already, and will not
        # be filled now.
        manager.uncache(victim.block_table, first=victim.num_computed_tokens // manager.block_size)
        victim.block_table.num_tokens = victim.num_computed_tokens
        if self.config.preemption == "swap" and manager.swap_out(victim.block_table):
            pass  # its keys and values survive, so everything computed stays computed
        else:
            manager.free(victim.block_table)
            victim.num_computed_tokens = 0
        if self.remote_kvs is not None:
            self.remote_kvs.inflight_prefills.discard(victim)
        victim.spec_token_ids = []  # they were to be verified now; on its return it gets others
        victim.status = RequestStatus.PREEMPTED
        victim.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.put_back(victim)
        output.preempted.append(victim)
        return victim

    def admit_waiting(self, output: SchedulerOutput, budget: int, threshold: int) -> None:
        """Rule 2."""
        config, manager, remote = self.config, self.block_manager, self.remote_kvs
        num_seqs, slots = self.num_running_seqs, self._draft_slots
        some_run = bool(output.scheduled)
        pads = self.num_speculative_tokens and not any(s.request.is_prefill_chunk for s in output.scheduled)
        passed_over: list[Request] = []  # their keys are not here yet; others may go before them
        while budget > slots:
            waiting = self.holding if len(self.holding) else self.waiting
            if not len(waiting):
                break
            request = waiting.head()
            if num_seqs + request.num_seqs > config.max_num_seqs:
                break
            if remote is not None and not remote.is_ready(request):
                waiting.remove(request)
                passed_over.append(request)
                continue
            table, tokens = request.block_table, request.token_ids
            swapped, received = bool(table.swap_blocks), bool(table.blocks)
            # Log probabilities of a prompt need each of its tokens computed: no cached block may stand in.
            no_reuse = swapped or received or request.prompt_logprobs is not None
            prefix = [] if no_reuse else manager.match_prefix(table, tokens)
            computed = (
                request.num_computed_tokens if swapped or received else len(prefix) * manager.block_size
            )
            num_external = 0
            if remote is not None and not no_reuse:
                num_external, is_async = self.connector.get_num_new_matched_tokens(request, computed)
                if num_external is None or is_async:
                    if is_async and not remote.start_loading(request, prefix, num_external):
                        break
                    if is_async:
                        self._note_lookup(request, computed, num_external)
                    waiting.remove(request)
                    passed_over.append(request)
                    continue
            n, drafts = len(tokens) - computed - num_external, ()
            if pads and n == 1 and request.num_seqs == 1 and (some_run or computed):
                # Beside others that verify drafts, it gets as many places as they have: steps of one size can be
                # recorded as one CUDA graph. (vLLM would rather not admit it than go without.)
                padded = 1 + self.num_speculative_tokens
                if computed + padded < self.max_model_len:
                    if padded > budget - slots:
                        break
                    n, drafts = padded, [PADDING] * self.num_speculative_tokens
            if threshold:
                n = min(n, threshold)
            if not config.chunked_prefill and n > budget - slots:
                break  # it waits for a step of its own; the queue keeps its order
            n = min(n, budget - slots)
            end = computed + num_external + n
            ahead = self._lookahead(end) if slots else 0
            # Admitted only if all of it would fit now. Otherwise prompts that are begun and cannot be ended
            # would take each other's blocks.
            all_of_it = manager.most_blocks(len(tokens), config.max_num_batched_tokens) * manager.block_size
            if swapped and not manager.swap_in(table, must_fit=max(all_of_it, end + ahead)):
                break
            if not manager.allocate(table, tokens, end, prefix, all_of_it, ahead):
                break
            if remote is not None:
                self.connector.update_state_after_alloc(request, table.block_ids, num_external)
                if end < len(tokens):
                    remote.inflight_prefills.add(request)
            waiting.remove(request)
            if not no_reuse:
                self._note_lookup(request, computed, num_external)
            request.status = RequestStatus.RUNNING
            request.num_computed_tokens = end - n
            self.running.append(request)
            num_seqs += request.num_seqs
            output.scheduled.append(Scheduled(request, n, end - n, drafts[: n - 1]))
            budget -= n + slots
        for request in reversed(passed_over):  # back to where they stood
            (self.holding if request.block_table.blocks else self.waiting).put_back(request)

    def _note_lookup(self, request: Request, num_cached: int, num_external: int) -> None:
        """Count what a request found in the prefix cache, and what a connector brings. Not again after a preemption."""
        if request.status is not RequestStatus.PREEMPTED and not request.num_preemptions:
            request.num_cached_tokens = num_cached + num_external
            if self.block_manager.enable_prefix_caching:
                self.prefix_queries += request.num_tokens
                self.prefix_hits += num_cached

    # ------------------------------------------------------------------ after the step

    def update(
        self, output: SchedulerOutput, token_ids: Sequence[int | Sequence[int] | None]
    ) -> list[Request]:
        """Take in the tokens that the step sampled.

        Args:
            output: what `schedule` returned.
            token_ids: one for each entry of `output.scheduled`; None where nothing was sampled. Where drafts were
                verified a list: the drafts that stand, and one token more.

        Returns:
            Requests that ended, in order. Their blocks are free again.
        """
        finished: list[Request] = []
        for s, tokens in zip(output.scheduled, token_ids, strict=True):
            request = s.request
            if tokens is None or request.status is not RequestStatus.RUNNING:
                continue  # still in its prompt; or it ended while the step ran
            tokens = (tokens,) if isinstance(tokens, int) else tokens
            if s.drafts:
                s.take_back_rejected(num_accepted=len(tokens) - 1)
            for token in tokens:
                request.append(token)
                reason = self._why_stop(request, token)
                if reason is not None:
                    self._release(request, reason)
                    finished.append(request)
                    break
        if finished:
            self.running = [r for r in self.running if r.status is RequestStatus.RUNNING]
        return finished

    def _why_stop(self, request: Request, token: int) -> str | None:
        num_output = len(request.output_token_ids)
        if token in request.stop_token_ids and num_output >= request.min_tokens:
            # An ordinary end of text needs no reason.
            request.stop_reason = token if token in request.params.stop_token_ids else None
            return "stop"
        if num_output == request.max_tokens or len(request.token_ids) >= self.max_model_len:
            return "length"
        return None

    # ------------------------------------------------------------------ coming and going

    def add(self, request: Request) -> None:
        """Queue up a new request.

        Raises:
            ValueError: it could never be served (see `check_size`), or its id is waiting already.
        """
        if not self.admit_oversized:
            check_size(request, self.config, self.max_model_len, self.block_manager)
        request.status = RequestStatus.WAITING
        self.waiting.push(request)

    def update_connector(self, output: KVConnectorOutput) -> None:
        """After `update`: take in what the worker side of the connector reports."""
        self.remote_kvs.update(output)

    def fork(self, output: SchedulerOutput, parent: Request, child: Request) -> None:
        """Between `schedule` and `update`: let `child` go on from where `parent` is, in the same blocks.

        It joins the step, with no tokens of its own to compute, so that `update` takes a token for it.
        """
        child.block_table = self.block_manager.fork(parent.block_table)
        child.num_computed_tokens = parent.num_computed_tokens
        child.num_cached_tokens = parent.num_cached_tokens
        child.status = RequestStatus.RUNNING
        child.num_seqs, parent.num_seqs = 1, parent.num_seqs - 1  # the parent counted for it so far
        self.running.append(child)
        output.scheduled.append(Scheduled(child, 0, child.num_computed_tokens))

    def finish(self, request: Request, reason: str) -> None:
        """End a request now, wherever it is: "abort", "error", or "stop" for a stop string."""
        if request.finished:
            return
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        elif request in self.holding:
            self.holding.remove(request)
        else:
            self.waiting.remove(request)
        self._release(request, reason)

    def _release(self, request: Request, reason: str) -> None:
        request.finish_reason = reason
        if self.remote_kvs is not None:
            self.remote_kvs.release(request)
        else:
            self.block_manager.free(request.block_table)
        request.status = RequestStatus.FINISHED

    def restart(self, request: Request) -> None:
        """Send a running request back to the head of the queue, to be computed from its first token on.

        For a step that came to nothing: what its blocks hold is not to be trusted, so no prefix may hit them.
        """
        if request.status is not RequestStatus.RUNNING:
            return  # it ended or was sent back already
        self.running.remove(request)
        self.block_manager.uncache(request.block_table)
        self.block_manager.free(request.block_table)
        request.num_computed_tokens, request.spec_token_ids = 0, []
        request.status = RequestStatus.PREEMPTED
        self.waiting.put_back(request)
