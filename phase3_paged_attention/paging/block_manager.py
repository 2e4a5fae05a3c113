"""`BlockManager`: virtual memory for the KV cache. It assigns blocks to requests.

    match_prefix   find the cached blocks that hold the beginning of a request's tokens
    reserve        allocate blocks for the first n tokens of a request; False if too few are free, and nothing has changed
    cache_blocks   add full blocks to the prefix cache, so that other requests find them
    free           free all blocks of a request: those with a hash go to the end of the free list, the others to its front
    uncache        before `free`, if the request is preempted: remove blocks that will not be filled from the prefix cache

It never handles a key or a value; `KVStorage` holds the tensors.

Sources: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention" (2023),
sections 4.2 to 4.4; vllm/v1/core/kv_cache_manager.py (`allocate_slots`), block_pool.py and
single_type_kv_cache_manager.py.
"""

from collections.abc import Iterable, Sequence

from phase3_paged_attention.paging.block_allocator import BlockAllocator, PhysicalBlock
from phase3_paged_attention.paging.block_table import BlockTable, hash_block
from phase3_paged_attention.paging.integrity import check_integrity
from phase3_paged_attention.paging.prefix_cache import PrefixCache


class BlockManager:
    """Allocates blocks to requests, shares equal blocks between them, and frees them.

    Args:
        num_blocks: blocks in the cache, the null block 0 included.
        block_size: tokens per block.
        enable_prefix_caching: find full blocks by the tokens they hold.

    Attributes:
        tables: the block tables that hold blocks.

    >>> manager, alice = BlockManager(num_blocks=5, block_size=4), BlockTable()
    >>> manager.allocate(alice, token_ids=[1, 2, 3, 4, 5], num_tokens=5)
    True
    >>> alice.block_ids
    [1, 2]
    """

    def __init__(self, num_blocks: int, block_size: int = 16, enable_prefix_caching: bool = True) -> None:
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}: a block holds at least 1 token")
        self.num_blocks, self.block_size = num_blocks, block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.allocator, self.prefix_cache = BlockAllocator(num_blocks), PrefixCache()
        self.tables: set[BlockTable] = set()

    # ------------------------------------------------------------------ lookup

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be allocated, including free blocks with cached content."""
        return self.allocator.num_free

    @property
    def usage(self) -> float:
        """Share of the blocks that requests hold, 0 to 1."""
        return 1 - self.allocator.num_free / (self.num_blocks - 1)

    @property
    def max_tokens(self) -> int | None:
        """The most tokens of one request that the cache can hold; None: any number."""
        return (self.num_blocks - 1) * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks for this many tokens, the last one perhaps partly filled."""
        return -(-num_tokens // self.block_size)

    def most_blocks(self, num_tokens: int) -> int:
        """The most blocks that a request of this many tokens holds at a time."""
        return self.blocks_for(num_tokens)

    def match_prefix(self, table: BlockTable, token_ids: Sequence[int]) -> list[PhysicalBlock]:
        """The longest run of cached blocks from the first token on. `reserve` takes them afterwards.

        Never all tokens: the last token must be computed, because sampling needs its logits.
        """
        found: list[PhysicalBlock] = []
        if self.enable_prefix_caching:
            for block_hash in self.block_hashes(table, token_ids, (len(token_ids) - 1) // self.block_size):
                block = self.prefix_cache.get(block_hash)
                if block is None:
                    break
                found.append(block)
        return found

    def block_hashes(self, table: BlockTable, token_ids: Sequence[int], num_blocks: int) -> list[bytes]:
        """Hashes of the first `num_blocks` full blocks. The table keeps them: a chain only grows."""
        size, hashes = self.block_size, table.block_hashes
        for i in range(len(hashes), num_blocks):
            hashes.append(
                hash_block(hashes[-1] if hashes else table.salt, token_ids[i * size : (i + 1) * size])
            )
        return hashes[:num_blocks]

    # ------------------------------------------------------------------ allocation

    def allocate(
        self,
        table: BlockTable,
        token_ids: Sequence[int],
        num_tokens: int,
        prefix: Sequence[PhysicalBlock] = (),
        must_fit: int = 0,
    ) -> bool:
        """`reserve`, and if that succeeds `cache_blocks`: the step that follows computes these tokens.

        Args:
            token_ids: the request's tokens so far, more than `num_tokens` or fewer.
        """
        if not self.reserve(table, num_tokens, prefix, must_fit):
            return False
        self.cache_blocks(table, token_ids, num_tokens)
        return True

    def reserve(
        self, table: BlockTable, num_tokens: int, prefix: Sequence[PhysicalBlock] = (), must_fit: int = 0
    ) -> bool:
        """Allocate slots for the first `num_tokens` tokens of a request. False, without a change, if too few blocks are free.

        Args:
            table: keeps the blocks that it has.
            prefix: the result of `match_prefix`, for an empty table.
            must_fit: refuse unless this many tokens would fit, though blocks are allocated for `num_tokens` only.
        """
        held = len(table.blocks)
        missing = self.blocks_for(num_tokens) - held
        if missing > 0 or must_fit:
            needed = max(missing, self.most_blocks(must_fit) - held) if must_fit else missing
            # Prefix blocks in use cost no free block. Unused ones are in the free list, so they count.
            needed -= sum(block.ref_count > 0 for block in prefix)
            if needed > self.allocator.num_free:
                return False
            self.tables.add(table)
            for block in prefix:  # first: taking new blocks might evict just these
                if block.ref_count == 0:
                    self.allocator.remove(block)
                block.ref_count += 1
            new = [*prefix, *(self.take_block() for _ in range(missing - len(prefix)))]
            table.blocks += new
            table.block_ids += [block.block_id for block in new]
            table.num_hashed += len(prefix)
        table.num_tokens = num_tokens
        return True

    def cache_blocks(self, table: BlockTable, token_ids: Sequence[int], num_tokens: int) -> None:
        """Add to the prefix cache the blocks that the first `num_tokens` tokens fill.

        Blocks may be added before they are computed: this step fills them before another request reads them.
        """
        num_full = min(num_tokens, len(token_ids)) // self.block_size
        if self.enable_prefix_caching and num_full > table.num_hashed:
            hashes = self.block_hashes(table, token_ids, num_full)
            for i in range(table.num_hashed, num_full):
                if table.blocks[i].block_hash is None:
                    self.prefix_cache.add(table.blocks[i], hashes[i])
            table.num_hashed = num_full

    def take_block(self) -> PhysicalBlock:
        """The block at the front of the free list. If it has a hash, it is evicted: the prefix cache removes it."""
        block = self.allocator.take()
        self.prefix_cache.remove(block)
        return block

    # ------------------------------------------------------------------ freeing

    def free(self, table: BlockTable) -> None:
        """Free all blocks of a request that finished or is preempted. An empty table is allowed.

        The last block goes first, so that the end of a text is evicted before its beginning, which more requests
        may share.
        """
        self.give_back(reversed(table.blocks))
        table.blocks, table.block_ids, table.num_tokens, table.num_hashed = [], [], 0, 0
        self.tables.discard(table)

    def give_back(self, blocks: Iterable[PhysicalBlock]) -> None:
        """Drop one reference to each of these blocks. A block without a hash goes to the front of the free list, because
        no request can find it again.
        """
        cached, uncached = [], []
        for block in blocks:
            block.ref_count -= 1
            if block.ref_count == 0:
                (uncached if block.block_hash is None else cached).append(block)
        self.allocator.free_to_front(uncached)
        self.allocator.free_to_back(cached)

    def uncache(self, table: BlockTable, first: int = 0) -> None:
        """Remove the blocks from `first` on from the prefix cache, because their content does not match their hashes."""
        for block in table.blocks[first:]:
            self.prefix_cache.remove(block)

    def reset_prefix_cache(self) -> bool:
        """Remove all blocks from the prefix cache. False, without a change, while any request holds a block."""
        if self.allocator.num_free < self.num_blocks - 1:
            return False
        for block in self.allocator.blocks:
            self.prefix_cache.remove(block)
        return True

    def check_integrity(self) -> None:
        """Raise RuntimeError if the records contradict each other (see `integrity.py`)."""
        check_integrity(self.block_size, self.allocator, self.prefix_cache, self.tables)
