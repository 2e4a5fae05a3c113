"""`BlockManager`: virtual memory for the KV cache. It decides which block belongs to which request.

It never sees a key or a value. `KVStorage` holds those, and makes the copies that the manager asks for.

Sources: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention"
(2023), sections 4.2 to 4.5; vllm/v1/core/block_pool.py and single_type_kv_cache_manager.py.
"""

from collections import deque
from collections.abc import Iterable, Sequence

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
        sliding_window: tokens that a query sees, itself included, in the layer that looks back furthest. Blocks
            that no later token will see are given back early. None: some layer sees everything, and as a block
            belongs to all layers, every block is kept. (vLLM has tables for each group of layers, and gives back
            more: vllm/v1/core/kv_cache_coordinator.py.)

    A call that cannot be satisfied changes nothing and returns False. (Blocks that have left the window go all the same.)

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
        sliding_window: int | None = None,
    ) -> None:
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}: a block holds at least 1 token")
        if num_swap_blocks < 0:
            raise ValueError(f"num_swap_blocks is {num_swap_blocks}: 0 (no swap) or more")
        if sliding_window is not None and sliding_window < 1:
            raise ValueError(f"sliding_window is {sliding_window}: a token sees at least itself")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.num_swap_blocks = num_swap_blocks
        self.sliding_window = sliding_window
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

    def num_skipped_blocks(self, num_computed: int) -> int:
        """Blocks at the beginning that no token sees any more, when so many tokens are computed."""
        if self.sliding_window is None:
            return 0
        return max(0, num_computed - self.sliding_window + 1) // self.block_size

    def most_blocks(self, num_tokens: int, num_new: int) -> int:
        """Blocks that a request of `num_tokens` holds at a time at most, if a step computes at most `num_new` of them."""
        if self.sliding_window is None:
            return self.blocks_for(num_tokens)
        # One more, since a window may begin in the middle of a block.
        return min(self.blocks_for(num_tokens), self.blocks_for(self.sliding_window - 1 + num_new) + 1)

    def match_prefix(self, table: BlockTable, token_ids: Sequence[int]) -> list[PhysicalBlock]:
        """The longest run of full blocks, from the first token on, that the cache already holds.

        With a sliding window only the last blocks are needed: for those before them the result has the null block.

        Never all of the tokens: the last one must be computed, or there would be no logits to sample from.
        Nothing is taken yet. Hand the result to `allocate` before anything else is allocated.
        """
        found: list[PhysicalBlock] = []
        if not self.enable_prefix_caching:
            return found
        most = (len(token_ids) - 1) // self.block_size
        hashes = self.block_hashes(table, token_ids, most)
        if self.sliding_window is not None:
            return self._match_window(hashes)
        for block_hash in hashes:
            block = self.prefix_cache.get(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def _match_window(self, hashes: Sequence[bytes]) -> list[PhysicalBlock]:
        """From the end to the beginning: the first run of blocks that fills a window."""
        needed = self.blocks_for(self.sliding_window - 1)
        first, run = 0, deque()
        for first in reversed(range(len(hashes))):
            block = self.prefix_cache.get(hashes[first])
            if block is None:
                run.clear()
                continue
            run.appendleft(block)
            if len(run) >= needed:
                break
        # (The loop ends at block 0 with what the text begins with, which may be less than a window, or nothing.)
        return [self.allocator.null_block] * first + list(run)

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
        reserved: int = 0,
        delay_caching: bool = False,
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
            reserved: free blocks that must be left for others.
            delay_caching: these tokens are computed elsewhere and are still on their way. Enter their blocks in the
                prefix cache later, with `cache_blocks`.

        Returns:
            False if there are too few free blocks. Then nothing has changed.
        """
        if self.sliding_window is not None:
            self.free_skipped(table)
        blocks, size = table.blocks, self.block_size
        missing = -(-(num_tokens + num_lookahead) // size) - len(blocks)
        # Writing into a block that others read as well would change their past: copy it first.
        first_written = table.num_tokens // size
        shared = first_written < len(blocks) and blocks[first_written].ref_count > 1
        if missing > 0 or shared or prefix or must_fit:
            in_all = max(-(-must_fit // size) - len(blocks), missing + reserved)
            # A cached block that no request holds counts as well: using it takes it from the free list.
            needed = in_all + shared
            if prefix:
                needed -= sum(block.ref_count > 0 for block in prefix)
            if needed > self.allocator.num_free:
                return False
            if not blocks:
                self.tables.add(table)
                self.stats.looked_up_tokens += len(token_ids)
            if prefix:  # before the others: taking new blocks might evict just these
                for block in prefix:
                    if block.ref_count == 0:
                        self.allocator.remove(block)
                    block.ref_count += 1
                    blocks.append(block)
                    table.block_ids.append(block.block_id)
                if self.journal is not None:
                    self.journal.hit += [block.block_id for block in prefix if block.block_id]
                table.num_hashed += len(prefix)
                self.stats.hit_tokens += len(prefix) * size
            if shared:
                self.copy_on_write(table, first_written)
            for _ in range(missing - len(prefix)):
                block = self.take_block()
                blocks.append(block)
                table.block_ids.append(block.block_id)
        table.num_tokens = num_tokens
        if not delay_caching:
            self.cache_blocks(table, token_ids, num_tokens)
        return True

    def cache_blocks(self, table: BlockTable, token_ids: Sequence[int], num_tokens: int) -> None:
        """Enter the blocks that the first `num_tokens` tokens fill in the prefix cache."""
        num_full = min(num_tokens, len(token_ids)) // self.block_size
        if self.enable_prefix_caching and num_full > table.num_hashed:
            hashes = self.block_hashes(table, token_ids, num_full)
            for i in range(table.num_hashed, num_full):
                if table.blocks[i].block_hash is None:
                    self.prefix_cache.add(table.blocks[i], hashes[i])
            table.num_hashed = num_full

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
        self._give_back(reversed(table.blocks))
        table.blocks, table.block_ids, table.num_hashed = [], [], 0

    def free_skipped(self, table: BlockTable) -> None:
        """Give back the blocks that have left the window. In the table the null block takes their places."""
        null, skipped = self.allocator.null_block, []
        for i in reversed(range(self.num_skipped_blocks(table.num_tokens))):
            if table.blocks[i] is null:
                break  # and so are all before it
            skipped.append(table.blocks[i])
            table.blocks[i], table.block_ids[i] = null, null.block_id
        null.ref_count += len(skipped)
        self._give_back(skipped)

    def _give_back(self, blocks: Iterable[PhysicalBlock]) -> None:
        """One table less points to each of these blocks."""
        cached, uncached = [], []
        for block in blocks:
            block.ref_count -= 1
            if block.ref_count == 0:
                (uncached if block.block_hash is None else cached).append(block)
        self.allocator.free_to_front(uncached)
        self.allocator.free_to_back(cached)
        if self.journal is not None:
            self.journal.freed += [block.block_id for block in uncached + cached]

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
        self.free_skipped(table)
        held = table.blocks[self.num_skipped_blocks(table.num_tokens) :]
        if len(held) > len(self.free_swap_blocks):
            return False
        for block in held:
            swap_block = self.free_swap_blocks.pop()
            table.swap_blocks.append(swap_block)
            self._copies.append(BlockCopy("out", block.block_id, swap_block))
        self.stats.swapped_out_blocks += len(held)
        self.release_blocks(table)
        return True

    def swap_in(self, table: BlockTable, must_fit: int = 0) -> bool:
        """Bring them back, into whatever blocks are free. False if too few are (see `allocate`)."""
        swap_blocks, num_skipped = table.swap_blocks, self.num_skipped_blocks(table.num_tokens)
        if max(len(swap_blocks), self.blocks_for(must_fit) - num_skipped) > self.allocator.num_free:
            return False
        null = self.allocator.null_block
        table.blocks, table.block_ids = [null] * num_skipped, [null.block_id] * num_skipped
        table.num_hashed = num_skipped
        null.ref_count += num_skipped
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
            self.num_skipped_blocks,
            self.allocator,
            self.prefix_cache,
            self.tables,
            self.num_swap_blocks,
            self.free_swap_blocks,
        )
