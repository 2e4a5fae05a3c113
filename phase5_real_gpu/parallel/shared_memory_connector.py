"""The KV connectors of the two sides: the one that computes prompts, and the one that writes answers.

    proxy -> prefill side   the prompt, one token of an answer, {"do_remote_decode": True}
    proxy <- prefill side   {"do_remote_prefill": True, where the blocks are, until when}
    proxy -> decode side    the request, with that
    decode side             reads the blocks that it has not cached itself, then writes the answer

Source: vllm/distributed/kv_transfer/kv_connector/v1/nixl, whose names and rules these are. (There the lease is 30 s, too.)
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from phase4_scheduler.engine import Request, SchedulerOutput
from phase4_scheduler.features.kv_transfer.connector import KVConnector, KVTransferParams
from phase5_real_gpu.parallel.block_transfer import (
    CLOCK_MARGIN,
    BlockPair,
    BlockServer,
    KVLayout,
    Peer,
    copy_blocks,
)

LEASE_SECONDS = 30.0


class PrefillConnector(KVConnector):
    """Keeps the blocks of requests that were computed for others, until they are read or their lease is over.

    Attributes:
        leases: by request id, until when its blocks are kept.
        num_expired: leases that ended before anybody said "done".
    """

    def __init__(
        self,
        server: BlockServer,
        lease_seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.server, self.lease_seconds, self._clock = server, lease_seconds, clock
        self.leases: dict[str, float] = {}
        self.num_expired = 0

    def request_finished(
        self, request: Request, block_ids: Sequence[int]
    ) -> tuple[bool, KVTransferParams | None]:
        params = request.extras.get("kv_transfer_params") or {}
        if not params.get("do_remote_decode") or request.finish_reason != "length":
            return False, None  # nobody wants its blocks, or it was aborted on its way
        until = self.leases[request.request_id] = self._clock() + self.lease_seconds
        return True, {
            "do_remote_prefill": True,
            "remote_address": self.server.address,
            "remote_request_id": request.request_id,
            "remote_block_ids": list(block_ids),
            "num_remote_tokens": request.num_computed_tokens,
            "lease_until": until - CLOCK_MARGIN,
        }

    def get_finished(self) -> tuple[Sequence[str], Sequence[str]]:
        now = self._clock()
        done = [name for name in self.server.take_done() if name in self.leases]
        expired = [name for name, until in self.leases.items() if now >= until and name not in done]
        self.num_expired += len(expired)
        for name in done + expired:
            del self.leases[name]
        return done + expired, ()

    def shutdown(self) -> None:
        self.server.close()


class Load(NamedTuple):
    """Blocks to be read for a request. None at all: only say that nobody wants them."""

    request_id: str
    address: str
    transfer: str
    pairs: list[BlockPair]
    lease_until: float


class DecodeConnector(KVConnector):
    """Reads blocks from prefill sides, in a thread of its own, while the engine goes on with its steps.

    Args:
        storage: the own cache, [2, num_layers, num_blocks, block_size, num_kv_heads, head_dim].

    Attributes:
        num_blocks_loaded, num_bytes_loaded, seconds_loading: since the start; of loads that succeeded.
        num_failed: loads that failed, wholly or in part.
    """

    def __init__(
        self, layout: KVLayout, storage: Tensor, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.layout, self.storage, self._clock = layout, storage, clock
        self.num_blocks_loaded = self.num_bytes_loaded = self.num_failed = 0
        self.seconds_loading = 0.0
        self._to_load: list[Load] = []
        self._jobs: queue.SimpleQueue[Load | None] = queue.SimpleQueue()
        self._over: queue.SimpleQueue[tuple[str, set[int]]] = queue.SimpleQueue()
        self._invalid: set[int] = set()
        self._peers: dict[str, Peer] = {}
        self._loader = threading.Thread(target=self._load_all, daemon=True)
        self._loader.start()

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
            # What the own prefix cache holds comes first, and is not read again.
            first = (params["num_remote_tokens"] - num_external_tokens) // self.layout.block_size
            pairs = list(zip(params["remote_block_ids"][first:], block_ids[first:], strict=True))
        self._ask_for(request, pairs)

    def _ask_for(self, request: Request, pairs: list[BlockPair]) -> None:
        params = request.extras["kv_transfer_params"]
        self._to_load.append(
            Load(
                request.request_id,
                params["remote_address"],
                params["remote_request_id"],
                pairs,
                params["lease_until"],
            )
        )
        request.extras.clear()  # once only: after a preemption it computes by itself

    def build_connector_meta(self, output: SchedulerOutput) -> list[Load]:
        loads, self._to_load = self._to_load, []
        return loads

    def request_finished(
        self, request: Request, block_ids: Sequence[int]
    ) -> tuple[bool, KVTransferParams | None]:
        if (request.extras.get("kv_transfer_params") or {}).get("do_remote_prefill"):
            self._ask_for(request, [])  # it ended before its turn came: the other side need not wait
        return False, None

    # ------------------------------------------------------------------ worker side

    def start_load_kv(self, metadata: list[Load]) -> None:
        for load in metadata:
            self._jobs.put(load)

    def get_finished(self) -> tuple[Sequence[str], Sequence[str]]:
        over = [self._over.get() for _ in range(self._over.qsize())]
        self._invalid = set().union(*(invalid for _, invalid in over))
        return (), [name for name, _ in over]

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._invalid

    def shutdown(self) -> None:
        self._jobs.put(None)
        self._loader.join()

    def connect(self, address: str) -> Peer:
        """The connection to a prefill side; a new one, if there is none. Raises: see `Peer`."""
        if address not in self._peers:
            self._peers[address] = Peer(address, self.layout)
        return self._peers[address]

    # ------------------------------------------------------------------ the thread

    def _load_all(self) -> None:
        while (load := self._jobs.get()) is not None:
            invalid = self._load(load)
            if load.pairs:
                self._over.put((load.request_id, invalid))

    def _load(self, load: Load) -> set[int]:
        """Returns the own blocks that could not be read. They are computed here, then."""
        invalid = {own for _, own in load.pairs}
        try:
            peer = self.connect(load.address)
            began = time.perf_counter()
            invalid = copy_blocks(peer.blocks, self.storage, load.pairs, load.lease_until, self._clock)
            self.seconds_loading += time.perf_counter() - began
            loaded = len(load.pairs) - len(invalid)
            self.num_blocks_loaded += loaded
            self.num_bytes_loaded += loaded * self.layout.block_bytes
            peer.done(load.transfer)
        # That side is gone, or another one, or says what cannot be. What was read of it is good. Whatever it was, this thread
        # must go on: a request whose load never ends waits for ever.
        except Exception as error:
            self._peers.pop(load.address, None)
            logging.getLogger(__name__).warning("%s (its prompts are computed here)", error)
        self.num_failed += bool(invalid)
        return invalid

    def stats(self) -> dict[str, Any]:
        names = ("num_blocks_loaded", "num_bytes_loaded", "num_failed", "seconds_loading")
        return {name: getattr(self, name) for name in names}
