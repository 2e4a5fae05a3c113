"""The KV connectors of the prefill side, which computes prompts, and of the decode side, which generates tokens.

    proxy -> prefill side   the prompt, one token of an answer, {"do_remote_decode": True}
    proxy <- prefill side   {"do_remote_prefill": True, where the blocks are, until when}
    proxy -> decode side    the request, with that
    decode side             reads the blocks that it has not cached itself, then generates

Both sides are in this process, so the decode side reads the other cache directly. Between machines NIXL or
Mooncake transfer the blocks; names and rules are the same.

Source: vllm/distributed/kv_transfer/kv_connector/v1/nixl. (Its lease is 30 s as well; heartbeats of the decode side renew it.)
"""

import time
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from phase4_scheduler.engine import Request, SchedulerOutput
from phase4_scheduler.features.kv_transfer.connector import KVConnector, KVTransferParams
from phase5_real_gpu.parallel.block_transfer import BlockPair, copy_blocks

LEASE_SECONDS = 30.0
Clock = Callable[[], float]


class PrefillConnector(KVConnector):
    """Keeps the blocks of requests computed for the decode side until they are read or their lease ends.

    Args:
        storage: its cache, [2, num_layers, num_blocks, block_size, num_kv_heads, head_dim].

    Attributes:
        leases: by request id, the end of its lease.
        num_expired: leases that ended before the decode side called `done`.
    """

    def __init__(
        self, storage: Tensor, lease_seconds: float = LEASE_SECONDS, clock: Clock = time.monotonic
    ) -> None:
        self.storage, self.lease_seconds, self._clock = storage, lease_seconds, clock
        self.leases: dict[str, float] = {}
        self.num_expired = 0
        self._done: list[str] = []

    def request_finished(
        self, request: Request, block_ids: Sequence[int]
    ) -> tuple[bool, KVTransferParams | None]:
        params = request.extras.get("kv_transfer_params") or {}
        if not params.get("do_remote_decode") or request.finish_reason != "length":
            return False, None  # no other side needs its blocks, or it was aborted
        until = self.leases[request.request_id] = self._clock() + self.lease_seconds
        return True, {
            "do_remote_prefill": True,
            "remote_engine": self,
            "remote_request_id": request.request_id,
            "remote_block_ids": list(block_ids),
            "num_remote_tokens": request.num_computed_tokens,
            "lease_until": until,
        }

    def get_finished(self) -> tuple[Sequence[str], Sequence[str]]:
        now, done = self._clock(), [name for name in self._done if name in self.leases]
        self._done = []
        expired = [name for name, until in self.leases.items() if now >= until and name not in done]
        self.num_expired += len(expired)
        for name in done + expired:
            del self.leases[name]
        return done + expired, ()

    def done(self, request_id: str) -> None:
        """Receive the message that the blocks of this request may be freed."""
        self._done.append(request_id)


class Load(NamedTuple):
    """Blocks to be read for a request. No pairs: only report that the blocks are not needed."""

    request_id: str
    engine: PrefillConnector
    transfer: str
    pairs: list[BlockPair]
    lease_until: float


class DecodeConnector(KVConnector):
    """Reads blocks of prefill sides into its own cache, between two steps.

    Args:
        storage: its cache, as above. block_size: tokens per block.

    Attributes:
        num_blocks_loaded: since the start. num_failed: loads that failed completely or in part.
    """

    def __init__(self, storage: Tensor, block_size: int, clock: Clock = time.monotonic) -> None:
        self.storage, self.block_size, self._clock = storage, block_size, clock
        self.num_blocks_loaded = self.num_failed = 0
        self._to_load: list[Load] = []
        self._started: list[Load] = []
        self._invalid: set[int] = set()

    # ------------------------------------------------------------------ scheduler side

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        params = request.extras.get("kv_transfer_params") or {}
        if not params.get("do_remote_prefill") or self._clock() >= params["lease_until"]:
            return 0, False
        number = params["num_remote_tokens"] - num_computed_tokens
        return max(0, number), number > 0

    def update_state_after_alloc(
        self, request: Request, block_ids: Sequence[int], num_external_tokens: int
    ) -> None:
        params = request.extras.get("kv_transfer_params") or {}
        if not params.get("do_remote_prefill"):
            return
        pairs: list[BlockPair] = []
        if num_external_tokens:
            # Blocks of the own prefix cache come first and are not read again.
            first = (params["num_remote_tokens"] - num_external_tokens) // self.block_size
            pairs = list(zip(params["remote_block_ids"][first:], block_ids[first:], strict=True))
        self._ask_for(request, pairs)

    def _ask_for(self, request: Request, pairs: list[BlockPair]) -> None:
        p = request.extras["kv_transfer_params"]
        transfer = p["remote_engine"], p["remote_request_id"]
        self._to_load.append(Load(request.request_id, *transfer, pairs, p["lease_until"]))
        del request.extras["kv_transfer_params"]  # only once: after a preemption the prompt is computed here

    def build_connector_meta(self, output: SchedulerOutput) -> list[Load]:
        loads, self._to_load = self._to_load, []
        return loads

    def request_finished(
        self, request: Request, block_ids: Sequence[int]
    ) -> tuple[bool, KVTransferParams | None]:
        if (request.extras.get("kv_transfer_params") or {}).get("do_remote_prefill"):
            self._ask_for(request, [])  # it ended before it was scheduled: the other side may free its blocks
        return False, None

    # ------------------------------------------------------------------ worker side

    def start_load_kv(self, metadata: list[Load]) -> None:
        self._started += metadata

    def get_finished(self) -> tuple[Sequence[str], Sequence[str]]:
        loads, self._started, self._invalid = self._started, [], set()
        for load in loads:
            self._invalid |= self._load(load)
        return (), [load.request_id for load in loads if load.pairs]

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._invalid

    def _load(self, load: Load) -> set[int]:
        """Returns the own blocks that could not be read. Their tokens are then computed here."""
        invalid = {own for _, own in load.pairs}
        try:
            invalid = copy_blocks(
                load.engine.storage, self.storage, load.pairs, load.lease_until, self._clock
            )
            load.engine.done(load.transfer)
        # The other side names blocks that do not exist. A request whose load never ends would wait forever.
        except (IndexError, RuntimeError) as error:
            warnings.warn(f"{error}: its prompts are computed here", stacklevel=2)
        self.num_blocks_loaded += len(load.pairs) - len(invalid)
        self.num_failed += bool(invalid)
        return invalid
