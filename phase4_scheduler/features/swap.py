"""Preemption by swapping: a preempted request's keys and values move to main memory, and come back with it.

Changes: nothing of a victim is computed again, as long as the swap space has room for its blocks; otherwise it is
recomputed, as without this feature.
Attaches to: `Scheduler.forget_computed`, `find_computed`, `reserve`; `EngineCore.execute`. The blocks: phase 3,
sharing/swap.py.

Source: Kwon et al. (2023), section 4.5.
"""

from collections.abc import Sequence
from typing import Any

from labkit.checks import whole
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging.block_allocator import PhysicalBlock
from phase3_paged_attention.sharing import SwappingBlockManager, SwapSpace
from phase4_scheduler.assembly import Feature
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.core import EngineCore
from phase4_scheduler.engine.model_runner import Sampled
from phase4_scheduler.engine.request import Request
from phase4_scheduler.engine.scheduler import Scheduler, SchedulerOutput


class SwappingScheduler(Scheduler):
    """Its block manager is a `SwappingBlockManager`."""

    def forget_computed(self, victim: Request) -> None:
        table = victim.block_table
        table.num_tokens = victim.num_computed_tokens
        if not (table.blocks and table.num_tokens and self.block_manager.swap_out(table)):
            super().forget_computed(victim)

    def find_computed(self, request: Request) -> tuple[int, Sequence[PhysicalBlock]]:
        if request.block_table in self.block_manager.swapped:
            return request.num_computed_tokens, ()
        return super().find_computed(request)

    def reserve(
        self, request: Request, num_tokens: int, prefix: Sequence[PhysicalBlock] = (), must_fit: int = 0
    ) -> bool:
        manager, table = self.block_manager, request.block_table
        if table in manager.swapped and not manager.swap_in(table, max(must_fit, self.extent(num_tokens))):
            return False
        return super().reserve(request, num_tokens, prefix, must_fit)


class SwappingCore(EngineCore):
    """
    Args:
        num_swap_blocks: blocks of main memory.
    """

    def __init__(self, *args, num_swap_blocks: int, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._spaces = [SwapSpace(cache.storage, num_swap_blocks) for cache in self.kv_caches]

    def execute(self, output: SchedulerOutput) -> list[Sampled]:
        copies = self.block_manager.take_copies()
        for space in self._spaces if copies else ():
            space.apply(copies)
        return super().execute(output)


class Swap(Feature):
    settings = {"preemption": "recompute", "num_swap_blocks": 0}
    scheduler, block_manager, core = SwappingScheduler, SwappingBlockManager, SwappingCore
    refuses = {
        "KVTransfer": "blocks on their way to another engine cannot move to main memory",
        "Executors": "the ranks have no swap space",
    }

    def is_on(self, model: Transformer, config: EngineConfig, features: Sequence[Feature]) -> bool:
        if self.preemption not in ("recompute", "swap"):
            raise ValueError(f"unknown preemption {self.preemption!r}: use recompute or swap")
        whole(0)("num_swap_blocks", self.num_swap_blocks)
        if self.preemption == "swap" and self.num_swap_blocks == 0:
            raise ValueError(
                "preemption is 'swap', and num_swap_blocks is 0: say how many blocks may be swapped out"
            )
        return self.preemption == "swap"

    def arguments(self, part: str) -> dict[str, Any]:
        return {"num_swap_blocks": self.num_swap_blocks} if part in ("block_manager", "core") else {}
