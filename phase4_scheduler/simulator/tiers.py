"""Levels of KV memory behind the cache of a GPU: main memory, an SSD, a store that several replicas share.

When a request ends, its full blocks go to every level under their hashes; a full level drops the least recently used ones. A new
request whose prefix the GPU has lost loads it from the fastest level that has it, where loading takes less time than computing. All
this attaches to the real scheduler as a KV connector does (`features/kv_transfer`), with a clock in place of copies.

A step in which blocks are loaded takes as long as the longer of the two, loading or computing: they go layer by layer beside each other.

Source: vllm/v1/kv_offload; Qin et al., "Mooncake" (2025), section 3.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from phase3_paged_attention.paging import BlockManager
from phase4_scheduler.engine import Request, SchedulerOutput
from phase4_scheduler.features.kv_transfer import KVConnector, KVTransferScheduler
from phase4_scheduler.simulator.cost_model import CostModel, StepSize
from phase4_scheduler.simulator.virtual_time import ClockedEngine, ReplicaConfig


@dataclass
class Tier:
    """One level.

    Attributes:
        gigabytes: its size, in 10^9 bytes. gb_per_second: at which one replica reads from it.
        held: hashes of its blocks, the least recently used first. A level that replicas share is one object in the stacks of all.
    """

    name: str
    gigabytes: float
    gb_per_second: float
    held: OrderedDict[bytes, None] = field(default_factory=OrderedDict, repr=False)


class TieredConnector(KVConnector):
    """Finds the beginnings of prompts in a stack of levels.

    Args:
        tiers: the fastest first.
        cost: says how long computing would take. block_bytes, block_size: of keys and values, of tokens.

    Attributes:
        loaded: tokens that came from each level so far.
    """

    def __init__(self, tiers: Sequence[Tier], cost: CostModel, block_bytes: float, block_size: int) -> None:
        self.tiers, self.cost, self.block_bytes, self.block_size = tiers, cost, block_bytes, block_size
        self.loaded = dict.fromkeys((tier.name for tier in tiers), 0)
        self.seconds = 0.0  # of the loads that the next step begins

    def level(self, name: bytes) -> int | None:
        return next((i for i, tier in enumerate(self.tiers) if name in tier.held), None)

    def put(self, names: Sequence[bytes]) -> None:
        """Store the blocks of a text, or note that they were used. Its end is dropped before its beginning."""
        for tier in self.tiers:
            for name in reversed(names):
                tier.held[name] = None
                tier.held.move_to_end(name)
            while len(tier.held) * self.block_bytes > tier.gigabytes * 1e9:
                tier.held.popitem(last=False)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        size, names = self.block_size, request.block_table.block_hashes
        found: list[int] = []
        for name in names[num_computed_tokens // size : (request.num_tokens - 1) // size]:
            if (level := self.level(name)) is None:
                break
            found.append(level)
        tokens = size * len(found)
        computing = self.cost.seconds(StepSize.of([(num_computed_tokens, tokens)])) if found else 0.0
        if sum(map(self.load_seconds, found)) >= computing:
            found = []
        self._found = found
        return size * len(found), False

    def load_seconds(self, level: int) -> float:
        """For one block."""
        return self.block_bytes / (1e9 * self.tiers[level].gb_per_second)

    def update_state_after_alloc(
        self, request: Request, block_ids: Sequence[int], num_external_tokens: int
    ) -> None:
        for level in self._found if num_external_tokens else ():
            self.loaded[self.tiers[level].name] += self.block_size
            self.seconds += self.load_seconds(level)

    def request_finished(self, request: Request, block_ids: Sequence[int]) -> tuple[bool, None]:
        self.put(request.block_table.block_hashes[: request.num_computed_tokens // self.block_size])
        return False, None

    def build_connector_meta(self, output: SchedulerOutput) -> float:
        seconds, self.seconds = self.seconds, 0.0
        return seconds


class TieredReplica(ClockedEngine):
    """A replica with levels behind its cache."""

    @classmethod
    def over(cls, config: ReplicaConfig, tiers: Sequence[Tier], kv_bytes: float) -> Self:
        """kv_bytes: of the keys and values of one token."""
        manager = BlockManager(config.num_blocks, config.block_size, config.enable_prefix_caching)
        connector = TieredConnector(tiers, config.cost, config.block_size * kv_bytes, config.block_size)
        return cls(KVTransferScheduler(config.scheduler, manager, kv_connector=connector), config.cost)

    def step_seconds(self, size: StepSize) -> float:
        loading, self.scheduler.metadata = self.scheduler.metadata or 0.0, 0.0
        return max(super().step_seconds(size), loading)
