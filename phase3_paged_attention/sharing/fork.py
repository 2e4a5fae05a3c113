"""Fork and copy-on-write: two requests with the same past share their blocks until one of them writes.

Changes: a second table may point to a request's blocks, the last and partly filled one included. Before a request writes
into a block that another table holds, it gets a copy of it.
Attaches to: `BlockManager.reserve`. The engine does not use it, and neither does vLLM V1, whose block tables are
append-only: n answers to one prompt are n requests, which share its full blocks through the prefix cache.

Source: Kwon et al. (2023), section 4.4.
"""

from collections.abc import Sequence

from phase3_paged_attention.paging.block_allocator import PhysicalBlock
from phase3_paged_attention.paging.block_table import BlockTable
from phase3_paged_attention.sharing.block_copies import BlockCopy, CopyingBlockManager


class ForkingBlockManager(CopyingBlockManager):
    """
    >>> manager, alice = ForkingBlockManager(num_blocks=9, block_size=4), BlockTable()
    >>> manager.reserve(alice, num_tokens=5)
    True
    >>> bob = manager.fork(alice)
    >>> manager.reserve(bob, num_tokens=6), alice.block_ids, bob.block_ids, manager.take_copies()
    (True, [1, 2], [1, 3], [BlockCopy(kind='copy', source=2, target=3)])
    """

    def fork(self, table: BlockTable) -> BlockTable:
        """A second request with the same past: same blocks, nothing copied.

        The first of the two that writes into a shared block gets a copy of it; the last one left writes in place.

        Raises:
            ValueError: the table's tokens are not in blocks.
        """
        num_blocks = self.blocks_for(table.num_tokens)
        if len(table.blocks) < num_blocks:
            raise ValueError("this table is swapped out: swap it in before forking it")
        blocks, block_ids = table.blocks[:num_blocks], table.block_ids[:num_blocks]
        for block in blocks:
            block.ref_count += 1
        twin = BlockTable(
            blocks, block_ids, table.num_tokens, table.num_hashed, list(table.block_hashes), table.salt
        )
        if twin.blocks:
            self.tables.add(twin)
        return twin

    def reserve(
        self, table: BlockTable, num_tokens: int, prefix: Sequence[PhysicalBlock] = (), must_fit: int = 0
    ) -> bool:
        first_written = table.num_tokens // self.block_size
        held = len(table.blocks)
        if first_written < held and table.blocks[first_written].ref_count > 1:
            needed = max(self.blocks_for(num_tokens), self.most_blocks(must_fit)) - held + 1
            if needed > self.num_free_blocks:
                return False
            self.copy_on_write(table, first_written)
        return super().reserve(table, num_tokens, prefix, must_fit)

    def copy_on_write(self, table: BlockTable, index: int) -> None:
        """Give a table a block of its own in place of one that it shares, with the same content."""
        old, new = table.blocks[index], self.take_block()
        old.ref_count -= 1
        table.blocks[index], table.block_ids[index] = new, new.block_id
        self._copies.append(BlockCopy("copy", old.block_id, new.block_id))
