"""`BlockManager`: virtual memory for the KV cache. It decides which block belongs to which request.

It never sees a key or a value. `KVStorage` holds those, and makes the copies that the manager asks for.

Sources: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention"
(2023), sections 4.2 to 4.5; vllm/v1/core/block_pool.py and single_type_kv_cache_manager.py.
"""

from collections.abc import Sequence

from phase3_paged_attention.paging.block_allocator import BlockAllocator, PhysicalBlock
from phase3_paged_attention.paging.block_table import (
    BlockCopy,
    BlockJournal,
    BlockTable,
    CacheStats,
    hash_block,
)
from phase3_paged_attention.paging.integrity import check_integrity
from phase3_paged_attention.paging.prefix_cache import PrefixCache


class BlockManager:
    """Gives blocks to requests, shares what is equal, and takes back what is no longer needed.

    Args:
        num_blocks: blocks in the cache, the null block 0 included.
        block_size: tokens a block.
        enable_prefix_caching: find full blocks again by the tokens they hold.
        num_swap_blocks: blocks of main memory for requests that have to make room.

    A call that cannot be satisfied changes nothing and returns False.

    >>> manager = BlockManager(num_blocks=5, block_size=4)
    >>> alice = BlockTable()
    >>> manager.allocate(alice, token_ids=[1, 2, 3, 4, 5], num_tokens=5)
    True
    >>> alice.block_ids
    [1, 2]
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        enable_prefix_caching: bool = True,
        num_swap_blocks: int = 0,
    ) -> None:
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}: a block holds at least 1 token")
        if num_swap_blocks < 0:
            raise ValueError(f"num_swap_blocks is {num_swap_blocks}: 0 (no swap) or more")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.num_swap_blocks = num_swap_blocks
        self.allocator = BlockAllocator(num_blocks)
        self.prefix_cache = PrefixCache()
        self.stats = CacheStats()
        self.journal: BlockJournal | None = None
        self.tables: set[BlockTable] = set()  # those that hold blocks or swap blocks
        self.free_swap_blocks = list(range(num_swap_blocks))
        self._copies: list[BlockCopy] = []

    # ------------------------------------------------------------------ looking

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be given out, those that still hold a cached content included."""
        return self.allocator.num_free

    @property
    def usage(self) -> float:
        """Share of the blocks that some request holds, 0 to 1."""
        return 1 - self.allocator.num_free / (self.num_blocks - 1)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that this many tokens need."""
        return -(-num_tokens // self.block_size)

    def match_prefix(self, table: BlockTable, token_ids: Sequence[int]) -> list[PhysicalBlock]:
        """The longest run of full blocks, from the first token on, that the cache already holds.

        Never all of the tokens: the last one must be computed, or there would be no logits to sample from.
        Nothing is taken yet. Hand the result to `allocate` before anything else is allocated.
        """
        found: list[PhysicalBlock] = []
        if not self.enable_prefix_caching:
            return found
        most = (len(token_ids) - 1) // self.block_size
        for block_hash in self.block_hashes(table, token_ids, most):
            block = self.prefix_cache.get(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def block_hashes(self, table: BlockTable, token_ids: Sequence[int], num_blocks: int) -> list[bytes]:
        """Hashes of the first `num_blocks` full blocks. They stay in the table: a chain only grows."""
        size, hashes = self.block_size, table.block_hashes
        for i in range(len(hashes), num_blocks):
            parent = hashes[-1] if hashes else b""
            hashes.append(hash_block(parent, token_ids[i * size : (i + 1) * size]))
        return hashes[:num_blocks]

    # ------------------------------------------------------------------ giving

    def allocate(
        self,
        table: BlockTable,
        token_ids: Sequence[int],
        num_tokens: int,
        prefix: Sequence[PhysicalBlock] = (),
        must_fit: int = 0,
        num_lookahead: int = 0,
    ) -> bool:
        """Make room for the first `num_tokens` tokens of a request.

        Args:
            table: the request's table; what it holds already is kept.
            token_ids: the request's tokens so far. Blocks that they fill within `num_tokens` are entered in
                the prefix cache: by the time another request may use them, this step has computed them.
            num_tokens: tokens that need room after the next step.
            prefix: what `match_prefix` found; only for an empty table.
            must_fit: refuse unless this many tokens would fit, though only `num_tokens` get their blocks now.
            num_lookahead: room behind them, for tokens that a draft model guesses.

        Returns:
            False if there are too few free blocks. Then nothing has changed.
        """
        blocks, size = table.blocks, self.block_size
        missing = -(-(num_tokens + num_lookahead) // size) - len(blocks)
        # Writing into a block that others read as well would change their past: copy it first.
        first_written = table.num_tokens // size
        shared = first_written < len(blocks) and blocks[first_written].ref_count > 1
        if missing > 0 or shared or prefix:
            in_all = max(-(-must_fit // size) - len(blocks), missing)
            # A cached block that no request holds counts as well: using it takes it from the free list.
            needed = in_all - sum(block.ref_count > 0 for block in prefix) + shared
            if needed > self.allocator.num_free:
                return False
            if not blocks:
                self.tables.add(table)
                self.stats.looked_up_tokens += len(token_ids)
            # The prefix first: otherwise taking new blocks might evict just these.
            for block in prefix:
                if block.ref_count == 0:
                    self.allocator.remove(block)
                block.ref_count += 1
                blocks.append(block)
                table.block_ids.append(block.block_id)
            if self.journal is not None:
                self.journal.hit += [block.block_id for block in prefix]
            table.num_hashed += len(prefix)
            self.stats.hit_tokens += len(prefix) * size
            if shared:
                self.copy_on_write(table, first_written)
            for _ in range(missing - len(prefix)):
                block = self.take_block()
                blocks.append(block)
                table.block_ids.append(block.block_id)
        table.num_tokens = num_tokens
        if self.enable_prefix_caching:
            num_full = min(num_tokens, len(token_ids)) // size
            if num_full > table.num_hashed:
                hashes = self.block_hashes(table, token_ids, num_full)
                for i in range(table.num_hashed, num_full):
                    if blocks[i].block_hash is None:
                        self.prefix_cache.add(blocks[i], hashes[i])
                table.num_hashed = num_full
        return True

    def take_block(self) -> PhysicalBlock:
        """A free block. What it held until now is forgotten: that is the eviction, oldest first."""
        block = self.allocator.take()
        self.stats.taken_blocks += 1
        if block.block_hash is not None:
            self.prefix_cache.remove(block)
            self.stats.evicted_blocks += 1
            if self.journal is not None:
                self.journal.evicted.append(block.block_id)
        if self.journal is not None:
            self.journal.taken.append(block.block_id)
        return block

    def copy_on_write(self, table: BlockTable, index: int) -> None:
        """Give a table a block of its own in place of one that it shares, with the same content."""
        old, new = table.blocks[index], self.take_block()
        old.ref_count -= 1
        table.blocks[index], table.block_ids[index] = new, new.block_id
        self.copy_block(old.block_id, new.block_id)

    def copy_block(self, source: int, target: int) -> None:
        """Ask for the bytes of one block to be copied to another (see `take_copies`)."""
        self._copies.append(BlockCopy("copy", source, target))
        self.stats.copied_blocks += 1

    # ------------------------------------------------------------------ taking back

    def free(self, table: BlockTable) -> None:
        """Give back all blocks of a request, finished or preempted. An empty table is fine."""
        self.release_blocks(table)
        self.free_swap_blocks += table.swap_blocks
        table.swap_blocks = []
        table.num_tokens = 0
        self.tables.discard(table)

    def release_blocks(self, table: BlockTable) -> None:
        """Empty a table; blocks that no other table holds are free.

        From its last block to its first. So the end of a text is forgotten before its beginning, which more
        requests may share. Blocks without a hash go to the front: they can never be found again.
        """
        cached, uncached = [], []
        for block in reversed(table.blocks):
            block.ref_count -= 1
            if block.ref_count == 0:
                (uncached if block.block_hash is None else cached).append(block)
        self.allocator.free_to_front(uncached)
        self.allocator.free_to_back(cached)
        if self.journal is not None:
            self.journal.freed += [block.block_id for block in uncached + cached]
        table.blocks, table.block_ids, table.num_hashed = [], [], 0

    def uncache(self, table: BlockTable, first: int = 0) -> None:
        """Take blocks `first`, ... out of the prefix cache: they do not hold what their hashes say."""
        for block in table.blocks[first:]:
            self.prefix_cache.remove(block)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached contents. False (and nothing is done) while any request holds a block."""
        if self.allocator.num_free < self.num_blocks - 1:
            return False
        for block in self.allocator.blocks:
            self.prefix_cache.remove(block)
        return True

    # ------------------------------------------------------------------ fork and swap

    def fork(self, table: BlockTable) -> BlockTable:
        """A second request with the same past: same blocks, nothing copied.

        The first to write into a shared block gets a copy of it (see `allocate`); the last one left
        writes in place.
        """
        if table.swap_blocks:
            raise ValueError("this table is swapped out: swap it in before forking it")
        num_blocks = self.blocks_for(table.num_tokens)  # without those that wait for a draft model's guesses
        blocks, block_ids = table.blocks[:num_blocks], table.block_ids[:num_blocks]
        for block in blocks:
            block.ref_count += 1
        twin = BlockTable(blocks, block_ids, table.num_tokens, table.num_hashed)
        twin.block_hashes = list(table.block_hashes)
        if twin.blocks:
            self.tables.add(twin)
        return twin

    def swap_out(self, table: BlockTable) -> bool:
        """Move a request's blocks to main memory. False if there is no room for them there."""
        if len(table.blocks) > len(self.free_swap_blocks):
            return False
        for block in table.blocks:
            swap_block = self.free_swap_blocks.pop()
            table.swap_blocks.append(swap_block)
            self._copies.append(BlockCopy("out", block.block_id, swap_block))
        self.stats.swapped_out_blocks += len(table.blocks)
        self.release_blocks(table)
        return True

    def swap_in(self, table: BlockTable, must_fit: int = 0) -> bool:
        """Bring them back, into whatever blocks are free. False if too few are (see `allocate`)."""
        swap_blocks = table.swap_blocks
        if max(len(swap_blocks), self.blocks_for(must_fit)) > self.allocator.num_free:
            return False
        for swap_block in swap_blocks:
            block = self.take_block()
            table.blocks.append(block)
            table.block_ids.append(block.block_id)
            self._copies.append(BlockCopy("in", swap_block, block.block_id))
        self.stats.swapped_in_blocks += len(swap_blocks)
        self.free_swap_blocks += swap_blocks
        table.swap_blocks = []
        return True

    def take_copies(self) -> list[BlockCopy]:
        """The copies that must be made, in this order, before the next step writes anything."""
        copies, self._copies = self._copies, []
        return copies

    def check_integrity(self) -> None:
        """Raise RuntimeError if anything contradicts itself (see `integrity.py`)."""
        check_integrity(
            self.block_size,
            self.allocator,
            self.prefix_cache,
            self.tables,
            self.num_swap_blocks,
            self.free_swap_blocks,
        )
