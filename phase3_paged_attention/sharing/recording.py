"""Recording: counts and a journal of the events of blocks.

Changes nothing in what the manager decides. Attaches to: `BlockManager.reserve`, `take_block`, `give_back`; to a manager
that exists already by `recorded(manager)`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from phase3_paged_attention.paging.block_allocator import PhysicalBlock
from phase3_paged_attention.paging.block_manager import BlockManager
from phase3_paged_attention.paging.block_table import BlockTable


@dataclass
class CacheStats:
    """Counts since the start. hit_tokens: tokens that were found in the prefix cache."""

    hit_tokens: int = 0
    taken_blocks: int = 0
    evicted_blocks: int = 0


@dataclass
class BlockJournal:
    """What happened to blocks, by id, since the journal was taken last."""

    taken: list[int] = field(default_factory=list)
    hit: list[int] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    evicted: list[int] = field(default_factory=list)


class RecordingBlockManager(BlockManager):
    """
    Attributes:
        stats: counts since the start.
        journal: what happened since `take_journal`.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.begin_recording()

    def begin_recording(self) -> None:
        self.stats, self.journal = CacheStats(), BlockJournal()

    def take_journal(self) -> BlockJournal:
        journal, self.journal = self.journal, BlockJournal()
        return journal

    def reserve(
        self, table: BlockTable, num_tokens: int, prefix: Sequence[PhysicalBlock] = (), must_fit: int = 0
    ) -> bool:
        reserved = super().reserve(table, num_tokens, prefix, must_fit)
        if reserved and prefix:
            self.stats.hit_tokens += len(prefix) * self.block_size
            self.journal.hit += [block.block_id for block in prefix if block.block_id]
        return reserved

    def take_block(self) -> PhysicalBlock:
        front = next(iter(self.allocator), None)
        evicts = front is not None and front.block_hash is not None
        block = super().take_block()
        self.stats.taken_blocks += 1
        self.journal.taken.append(block.block_id)
        if evicts:
            self.stats.evicted_blocks += 1
            self.journal.evicted.append(block.block_id)
        return block

    def give_back(self, blocks: Iterable[PhysicalBlock]) -> None:
        blocks = list(blocks)
        super().give_back(blocks)
        free = [block for block in blocks if block.ref_count == 0]
        # In the order of the free list: blocks without a hash to its front.
        free.sort(key=lambda block: block.block_hash is not None)
        self.journal.freed += [block.block_id for block in free]


def recorded(manager: BlockManager) -> BlockManager:
    """Let a manager that exists already record from now on, whatever its class. Returns it.

    Its class becomes one that records and is otherwise the same, so a manager that records nothing costs nothing.
    """
    if not isinstance(manager, RecordingBlockManager):
        kind = type(manager)
        manager.__class__ = type(kind.__name__, (RecordingBlockManager, kind), {})
        manager.begin_recording()
    return manager
