"""The scheduler's part in moving keys and values: requests whose blocks are on their way.

A request whose tokens another engine computed gets its blocks at once, and waits in `holding` until they are filled.
Meanwhile it takes part in no step, its blocks are in no prefix cache, and it cannot be preempted. Three things follow:

- It holds blocks while it waits, so its queue is looked at before the one of requests that hold none.
- It gives nothing back before it has run, so it may not take the blocks on which a prompt counts that is half computed.
- Another engine writes into its blocks, or reads them. If it ends meanwhile, they stay until that is over: `held`.

The decisions equal those of the real vLLM 0.32 on 60 recorded workloads with a connector.

Source: vllm/v1/core/sched/scheduler.py: WAITING_FOR_REMOTE_KVS, kv_holding_waiting, _inflight_prefills.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from phase3_paged_attention.paging.block_allocator import PhysicalBlock
from phase4_scheduler.engine.request import Request, RequestStatus
from phase4_scheduler.engine.scheduler import Scheduler, SchedulerOutput
from phase4_scheduler.features.kv_transfer.connector import KVConnector


class KVTransferScheduler(Scheduler):
    """
    Args:
        kv_connector: moves keys and values from and to other engines.

    Attributes:
        holding: requests that wait and hold blocks: their loading is under way, or over.
        loading: those of them for which it is under way.
        received, failed: ids of those for which it is over; for which it failed, wholly or in part.
        incomplete: requests that hold blocks for a part of their tokens: loading, or in the middle of their prompt.
        held: finished requests, by id, whose blocks are still being read or written.
        metadata: the scheduler side's message to the worker side, for the step that was decided last.
    """

    def __init__(self, *args, kv_connector: KVConnector, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.connector, self.holding = kv_connector, type(self.waiting)()
        self.loading: set[Request] = set()
        self.received: set[str] = set()
        self.failed: set[str] = set()
        self.incomplete: set[Request] = set()
        self.held: dict[str, Request] = {}
        self.metadata: Any = None

    @property
    def num_waiting(self) -> int:
        return super().num_waiting + len(self.holding)

    @property
    def has_requests(self) -> bool:
        return super().has_requests or bool(self.held)

    @property
    def waits_for_others(self) -> bool:
        return len(self.holding) > 0 or bool(self.held)

    # ------------------------------------------------------------------ deciding a step

    def schedule(self) -> SchedulerOutput:
        output = super().schedule()
        self.incomplete -= {s.request for s in output.scheduled if s.samples}
        self.metadata = self.connector.build_connector_meta(output)
        return output

    def admit_waiting(self, output: SchedulerOutput) -> None:
        self._passed_over: list[Request] = []  # not ready yet; others may go before them
        super().admit_waiting(output)
        for request in reversed(self._passed_over):  # back to their places
            (self.holding if request.block_table.blocks else self.waiting).put_back(request)

    def candidates(self, output: SchedulerOutput) -> Iterator[Request]:
        """Requests in `holding` first. Asks the connector, starts loading, and passes over what is not ready."""
        while not self.is_full(output) and len(queue := self.holding if len(self.holding) else self.waiting):
            request = queue.head()
            if self.is_ready(request):
                if request.block_table.blocks:  # they came from elsewhere
                    self._start, self._external = (request.num_computed_tokens, ()), 0
                    yield request
                    continue
                computed, prefix = super().find_computed(request)
                external, is_async = 0, False
                if not request.skip_reading_prefix_cache:
                    external, is_async = self.connector.get_num_new_matched_tokens(request, computed)
                if external is not None and not is_async:
                    self._start, self._external = (computed + external, prefix), external
                    request.extras["num_external_tokens"] = external
                    yield request
                    continue
                if is_async:
                    if not self.start_loading(request, prefix, external):
                        return
                    request.extras["num_external_tokens"] = external
            queue.remove(request)
            self._passed_over.append(request)

    def find_computed(self, request: Request) -> tuple[int, Sequence[PhysicalBlock]]:
        return self._start

    def reserve(
        self, request: Request, num_tokens: int, prefix: Sequence[PhysicalBlock] = (), must_fit: int = 0
    ) -> bool:
        reserved = super().reserve(request, num_tokens, prefix, must_fit)
        if reserved and must_fit:  # it is admitted
            self.connector.update_state_after_alloc(request, request.block_table.block_ids, self._external)
            if num_tokens < request.num_tokens:
                self.incomplete.add(request)
        return reserved

    def preempt(self, victim: Request) -> None:
        super().preempt(victim)
        self.incomplete.discard(victim)

    # ------------------------------------------------------------------ loading

    def start_loading(self, request: Request, prefix: Sequence[PhysicalBlock], num_external: int) -> bool:
        """Blocks for what is loaded, behind the cached prefix. False: too few are free."""
        manager, table = self.block_manager, request.block_table
        computed = len(prefix) * manager.block_size + num_external
        promised = sum(
            max(0, manager.blocks_for(min(r.num_tokens, self.max_model_len)) - len(r.block_table.blocks))
            for r in self.incomplete
        )
        shared = sum(block.ref_count > 0 for block in prefix)
        if manager.blocks_for(computed) + promised - shared > manager.num_free_blocks:
            return False
        if not manager.reserve(table, computed, prefix, must_fit=request.num_tokens):
            return False
        self.connector.update_state_after_alloc(request, table.block_ids, num_external)
        self.loading.add(request)
        request.num_computed_tokens = computed
        self.incomplete.add(request)
        return True

    def is_ready(self, request: Request) -> bool:
        """Whether a request may be admitted. Blocks that have just arrived enter the prefix cache now."""
        if request not in self.loading:
            return True
        if request.request_id not in self.received:
            return False
        self.received.remove(request.request_id)
        self.loading.remove(request)
        table, computed = request.block_table, request.num_computed_tokens
        if request.request_id in self.failed and computed == 0:
            self.block_manager.free(table)  # nothing came: it starts like a new one
        else:
            self.block_manager.cache_blocks(table, request.token_ids, computed)
            table.num_tokens = computed
        self.failed.discard(request.request_id)
        if computed == request.num_tokens:
            request.num_computed_tokens -= 1  # the last token is computed here, to sample from
        return True

    def update_connector(self, sent: Sequence[str], received: Sequence[str], invalid: set[int]) -> None:
        """After `update`: take in what the worker side of the connector reports.

        Args:
            sent: finished requests whose blocks are read no more.
            received: requests whose blocks have come, or will not come.
            invalid: blocks of those that do not hold what they should.
        """
        for request in self.loading if invalid else ():
            self._cut(request, invalid)
        for request_id in received:
            if request_id in self.held:  # it ended while it was loaded
                self._free_held(request_id)
            else:
                self.received.add(request_id)
        for request_id in sent:
            self._free_held(request_id)

    def _cut(self, request: Request, invalid: set[int]) -> None:
        """Tokens behind the first invalid block are computed here."""
        num_blocks = self.block_manager.blocks_for(request.num_computed_tokens)
        for i, block_id in enumerate(request.block_table.block_ids[:num_blocks]):
            if block_id in invalid:
                request.num_computed_tokens = i * self.block_manager.block_size
                self.failed.add(request.request_id)
                return

    # ------------------------------------------------------------------ ending

    def remove(self, request: Request) -> None:
        if request.status is not RequestStatus.RUNNING and request in self.holding:
            self.holding.remove(request)
        else:
            super().remove(request)

    def release(self, request: Request) -> None:
        """Free the blocks, unless another engine still reads or writes them."""
        request_id, manager = request.request_id, self.block_manager
        being_written = request in self.loading and request_id not in self.received
        self.incomplete.discard(request)
        self.loading.discard(request)
        self.received.discard(request_id)
        self.failed.discard(request_id)
        num_blocks = manager.blocks_for(request.num_computed_tokens)
        being_read, answer = self.connector.request_finished(
            request, request.block_table.block_ids[:num_blocks]
        )
        request.extras["kv_transfer_params"] = answer
        if being_written or being_read:
            self.held[request_id] = request
        else:
            super().release(request)

    def _free_held(self, request_id: str) -> None:
        super().release(self.held.pop(request_id))
