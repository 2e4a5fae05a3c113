"""The scheduler's part in moving keys and values: requests whose blocks are on their way.

A request that others have computed gets its blocks at once, and then it waits until they are filled. It takes part in no
step, its blocks are in no prefix cache, and it cannot be preempted. Three things follow from that:

- It holds blocks while it waits. So it stands in a queue of its own, `holding`, and is looked at before those that hold
  none.
- It gives nothing back before it has run. So it may not take the blocks on which a prompt counts that is half
  computed: `reserved_blocks`.
- Somebody else writes into its blocks, or reads them. So if it ends meanwhile, they stay until that is over: `held`.

Source: vllm/v1/core/sched/scheduler.py: WAITING_FOR_REMOTE_KVS, kv_holding_waiting, _inflight_prefills.
"""

from collections.abc import Sequence

from phase3_paged_attention.paging.block_allocator import PhysicalBlock
from phase3_paged_attention.paging.block_manager import BlockManager
from phase4_scheduler.engine.kv_connector import KVConnector, KVConnectorOutput
from phase4_scheduler.engine.queues import WaitingQueue
from phase4_scheduler.engine.request import Request, RequestStatus


class RemoteKVs:
    """Requests whose blocks others fill or read.

    Attributes:
        holding: those that wait and hold blocks: their loading is under way, or over.
        received: those of them for which it is over.
        failed: those of them for which it failed, wholly or in part.
        inflight_prefills: requests with blocks for a part of their tokens only: loading, or in their prompt.
        held: requests that have ended, and whose blocks are still being written or read, by id.
    """

    def __init__(
        self, connector: KVConnector, manager: BlockManager, holding: WaitingQueue, max_model_len: int
    ) -> None:
        self.connector, self.manager, self.max_model_len = connector, manager, max_model_len
        self.holding = holding
        self.received: set[str] = set()
        self.failed: set[str] = set()
        self.inflight_prefills: set[Request] = set()
        self.held: dict[str, Request] = {}

    @property
    def is_busy(self) -> bool:
        return len(self.holding) > 0 or bool(self.held)

    # ------------------------------------------------------------------ loading

    def start_loading(self, request: Request, prefix: Sequence[PhysicalBlock], num_external: int) -> bool:
        """Give a request blocks for what is loaded, behind the `prefix` that is here. False if there are too few."""
        manager, tokens = self.manager, request.token_ids
        computed = len(prefix) * manager.block_size + num_external
        if not manager.allocate(
            request.block_table,
            tokens,
            computed,
            prefix,
            must_fit=len(tokens),
            reserved=self.reserved_blocks(),
            delay_caching=True,
        ):
            return False
        self.connector.update_state_after_alloc(request, request.block_table.block_ids, num_external)
        request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
        request.num_computed_tokens = computed
        self.inflight_prefills.add(request)
        return True

    def reserved_blocks(self) -> int:
        """Blocks that requests need which have begun and are not through their tokens."""
        needed = 0
        for request in self.inflight_prefills:
            blocks = self.manager.blocks_for(min(request.num_tokens, self.max_model_len))
            needed += max(0, blocks - len(request.block_table.blocks))
        return needed

    def is_ready(self, request: Request) -> bool:
        """Whether a request may be admitted. If its blocks have just come, they go into the prefix cache now."""
        if request.status is not RequestStatus.WAITING_FOR_REMOTE_KVS:
            return True
        if request.request_id not in self.received:
            return False
        self.received.remove(request.request_id)
        table, computed = request.block_table, request.num_computed_tokens
        if request.request_id in self.failed and computed == 0:
            self.manager.free(table)  # nothing came: it starts like a new one
        else:
            self.manager.cache_blocks(table, request.token_ids, computed)
            table.num_tokens = computed
        self.failed.discard(request.request_id)
        if computed == request.num_tokens:  # its last token must be computed, to sample from
            request.num_computed_tokens -= 1
        request.status = RequestStatus.PREEMPTED if request.num_preemptions else RequestStatus.WAITING
        return True

    def update(self, output: KVConnectorOutput) -> None:
        """Take in what the worker side reports."""
        if output.invalid_block_ids:
            for request in self.holding:
                if request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
                    self._cut(request, output.invalid_block_ids)
        for request_id in output.finished_recving:
            if request_id in self.held:  # it ended while it was loaded
                self._let_go(request_id)
            else:
                self.received.add(request_id)
        for request_id in output.finished_sending:
            self._let_go(request_id)

    def _cut(self, request: Request, invalid: set[int]) -> None:
        """What stands behind the first invalid block is worth nothing: it is computed here."""
        computed = self.manager.blocks_for(request.num_computed_tokens)
        for i, block_id in enumerate(request.block_table.block_ids[:computed]):
            if block_id in invalid:
                request.num_computed_tokens = i * self.manager.block_size
                self.failed.add(request.request_id)
                return

    # ------------------------------------------------------------------ ending

    def release(self, request: Request) -> None:
        """A request has ended: free its blocks, unless somebody still reads them or writes into them."""
        request_id = request.request_id
        self.inflight_prefills.discard(request)
        being_written = (
            request.status is RequestStatus.WAITING_FOR_REMOTE_KVS and request_id not in self.received
        )
        self.received.discard(request_id)
        self.failed.discard(request_id)
        computed = self.manager.blocks_for(request.num_computed_tokens)
        being_read, request.kv_transfer_params = self.connector.request_finished(
            request, request.block_table.block_ids[:computed]
        )
        if being_written or being_read:
            self.held[request_id] = request
        else:
            self.manager.free(request.block_table)

    def _let_go(self, request_id: str) -> None:
        self.manager.free(self.held.pop(request_id).block_table)
