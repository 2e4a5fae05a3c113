"""Swap: the blocks of a preempted request move to main memory and back, instead of being computed again.

Changes: a table may be swapped out; then it holds no block, and its content lies in the swap space.
Attaches to: `BlockManager`, by two more methods. The engine's part is phase4_scheduler/features/swap.py. vLLM had it
in 2023; V1 recomputes instead, and the option `swap_space` was removed in version 0.18 (pull request 36216).

Source: Kwon et al. (2023), section 4.5.
"""

from phase3_paged_attention.paging.block_table import BlockTable
from phase3_paged_attention.paging.integrity import demand
from phase3_paged_attention.sharing.block_copies import BlockCopy, CopyingBlockManager


class SwappingBlockManager(CopyingBlockManager):
    """
    Args:
        num_swap_blocks: blocks of main memory.

    Attributes:
        swapped: by table, for each of its blocks the swap block that holds its content; None for the null block.
    """

    def __init__(self, *args, num_swap_blocks: int, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        if num_swap_blocks < 0:
            raise ValueError(f"num_swap_blocks is {num_swap_blocks}: 0 (no swap) or more")
        self.num_swap_blocks = num_swap_blocks
        self.free_swap_blocks = list(range(num_swap_blocks))
        self.swapped: dict[BlockTable, list[int | None]] = {}

    def swap_out(self, table: BlockTable) -> bool:
        """Move a request's blocks to main memory. False if there is no room for them there."""
        null, num_tokens = self.allocator.null_block, table.num_tokens
        blocks = table.blocks[: self.blocks_for(num_tokens)]
        if sum(block is not null for block in blocks) > len(self.free_swap_blocks):
            return False
        places = [None if block is null else self.free_swap_blocks.pop() for block in blocks]
        for block, place in zip(blocks, places, strict=True):
            if place is not None:
                self._copies.append(BlockCopy("out", block.block_id, place))
        self.free(table)
        self.swapped[table], table.num_tokens = places, num_tokens
        return True

    def swap_in(self, table: BlockTable, must_fit: int = 0) -> bool:
        """Bring them back, into whatever blocks are free. False if too few are (`must_fit`: see `reserve`)."""
        places, null = self.swapped[table], self.allocator.null_block
        num_null = places.count(None)
        if max(len(places), self.most_blocks(must_fit)) - num_null > self.num_free_blocks:
            return False
        null.ref_count += num_null
        table.blocks = [null if place is None else self.take_block() for place in places]
        table.block_ids = [block.block_id for block in table.blocks]
        table.num_hashed = num_null
        self.tables.add(table)
        for block, place in zip(table.blocks, places, strict=True):
            if place is not None:
                self._copies.append(BlockCopy("in", place, block.block_id))
        self.free_swap_blocks += [place for place in self.swapped.pop(table) if place is not None]
        return True

    def free(self, table: BlockTable) -> None:
        super().free(table)
        self.free_swap_blocks += [place for place in self.swapped.pop(table, ()) if place is not None]

    def check_integrity(self) -> None:
        super().check_integrity()
        used = [place for places in self.swapped.values() for place in places if place is not None]
        demand(
            sorted(used + self.free_swap_blocks) == list(range(self.num_swap_blocks)),
            "a swap block is lost or used twice",
        )
