"""Virtual memory for the KV cache: block tables, reference counts, prefix caching, copy-on-write, swap.

A request believes that its keys and values lie in one long row. They lie in blocks, scattered over the
memory, and a table says where: exactly what an operating system does for a process.

    operating system            here
    page frame                  PhysicalBlock: room for the keys and values of 16 tokens
    free list                   BlockAllocator
    page table                  BlockTable: block 0 of the request is physical block 7, block 1 is 3, ...
    shared library              prefix caching: the same system prompt, stored once
    fork and copy-on-write      parallel samples of one prompt
    swap space                  blocks moved to main memory and back

You will see a table fill up, two requests share a prompt, a fork that copies only when it writes, and
what is thrown out when memory runs short.

Sources: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention"
(2023), sections 4.2 to 4.5; vllm/v1/core/block_pool.py and single_type_kv_cache_manager.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from phase3_paged_attention.paging.block_allocator import BlockAllocator, PhysicalBlock
from phase3_paged_attention.paging.block_table import (
    BlockCopy,
    BlockJournal,
    BlockTable,
    CacheStats,
    hash_block,
)


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
        self.allocator = BlockAllocator(num_blocks)
        self.stats = CacheStats()
        self.journal: BlockJournal | None = None
        # Equal blocks of several requests are not merged: a name leads to all of them, the oldest first.
        self._blocks_by_hash: dict[bytes, dict[int, PhysicalBlock]] = {}
        self._tables: dict[int, BlockTable] = {}  # tables that hold blocks or swap slots, by identity
        self.num_swap_blocks = num_swap_blocks
        self._free_slots = list(range(num_swap_blocks))
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
        for name in self._hash_chain(table, token_ids, most):
            same = self._blocks_by_hash.get(name)
            if not same:
                break
            found.append(next(iter(same.values())))
        return found

    def _hash_chain(self, table: BlockTable, token_ids: Sequence[int], num_blocks: int) -> list[bytes]:
        """Hashes of the first `num_blocks` full blocks. They stay in the table: a chain only grows."""
        size, hashes = self.block_size, table.hashes
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
    ) -> bool:
        """Make room for the first `num_tokens` tokens of a request.

        Args:
            table: the request's table; what it holds already is kept.
            token_ids: the request's tokens so far. Blocks that they fill within `num_tokens` get a name in
                the prefix cache: by the time anyone else may use them, this step has computed them.
            num_tokens: tokens that need room after the next step.
            prefix: what `match_prefix` found; only for an empty table.
            must_fit: refuse unless this many tokens would fit, though only `num_tokens` get their blocks now.

        Returns:
            False if there are too few free blocks. Then nothing has changed.
        """
        blocks, size = table.blocks, self.block_size
        missing = -(-num_tokens // size) - len(blocks)
        # Writing into a block that others read as well would change their past: copy it first.
        first_written = table.num_tokens // size
        shared = first_written < len(blocks) and blocks[first_written].ref_count > 1
        if missing > 0 or shared or prefix:
            in_all = max(-(-must_fit // size) - len(blocks), missing)
            # A cached block that nobody holds counts as well: using it takes it from the free list.
            needed = in_all - sum(block.ref_count > 0 for block in prefix) + shared
            if needed > self.allocator.num_free:
                return False
            self._tables[id(table)] = table
            if not blocks:
                self.stats.looked_up_tokens += len(token_ids)
            # The prefix first: otherwise taking new blocks might evict just these.
            for block in prefix:
                self._share(block)
                blocks.append(block)
                table.block_ids.append(block.block_id)
            table.num_hashed += len(prefix)
            self.stats.hit_tokens += len(prefix) * size
            if shared:
                self._copy_on_write(table, first_written)
            for _ in range(missing - len(prefix)):
                block = self._take()
                blocks.append(block)
                table.block_ids.append(block.block_id)
        table.num_tokens = num_tokens
        if self.enable_prefix_caching:
            full = min(num_tokens, len(token_ids)) // size
            if full > table.num_hashed:
                self._enter_in_cache(table, token_ids, full)
        return True

    def _take(self) -> PhysicalBlock:
        """A free block. What it held until now is forgotten: that is the eviction, oldest first."""
        block = self.allocator.take()
        self.stats.taken_blocks += 1
        if block.content_hash is not None:
            self._forget(block)
            self.stats.evicted_blocks += 1
            if self.journal is not None:
                self.journal.evicted.append(block.block_id)
        if self.journal is not None:
            self.journal.taken.append(block.block_id)
        return block

    def _share(self, block: PhysicalBlock) -> None:
        if block.ref_count == 0:
            self.allocator.remove(block)
        block.ref_count += 1
        if self.journal is not None:
            self.journal.hit.append(block.block_id)

    def _copy_on_write(self, table: BlockTable, index: int) -> None:
        old, new = table.blocks[index], self._take()
        old.ref_count -= 1
        table.blocks[index], table.block_ids[index] = new, new.block_id
        self._copies.append(BlockCopy("copy", old.block_id, new.block_id))
        self.stats.copied_blocks += 1

    def _enter_in_cache(self, table: BlockTable, token_ids: Sequence[int], num_full: int) -> None:
        names = self._hash_chain(table, token_ids, num_full)
        for i in range(table.num_hashed, num_full):
            block = table.blocks[i]
            if block.content_hash is None:
                block.content_hash = names[i]
                self._blocks_by_hash.setdefault(names[i], {})[block.block_id] = block
        table.num_hashed = num_full

    def _forget(self, block: PhysicalBlock) -> None:
        """Take a block out of the prefix cache. Its bytes may be anything from now on."""
        same = self._blocks_by_hash[block.content_hash]
        del same[block.block_id]
        if not same:
            del self._blocks_by_hash[block.content_hash]
        block.content_hash = None

    # ------------------------------------------------------------------ taking back

    def free(self, table: BlockTable) -> None:
        """Give back all blocks of a request, finished or preempted. An empty table is fine.

        From its last block to its first. So the end of a text is forgotten before its beginning, which more
        requests may share. Blocks with no name go to the front: nobody will ever ask for them again.
        """
        self._give_back(table)
        self._free_slots.extend(table.swap_slots)
        table.swap_slots = []
        table.num_tokens = 0
        self._tables.pop(id(table), None)

    def _give_back(self, table: BlockTable) -> None:
        named, nameless = [], []
        for block in reversed(table.blocks):
            block.ref_count -= 1
            if block.ref_count == 0:
                (nameless if block.content_hash is None else named).append(block)
        self.allocator.free_to_front(nameless)
        self.allocator.free_to_back(named)
        if self.journal is not None:
            self.journal.freed += [block.block_id for block in nameless + named]
        table.blocks, table.block_ids, table.num_hashed = [], [], 0

    def uncache(self, table: BlockTable, first: int = 0) -> None:
        """Nobody may hit blocks `first`, ... any more: what they hold is not what their names say."""
        for block in table.blocks[first:]:
            if block.content_hash is not None:
                self._forget(block)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached contents. False (and nothing is done) while any request holds a block."""
        if self.allocator.num_free < self.num_blocks - 1:
            return False
        for block in self.allocator.blocks:
            if block.content_hash is not None:
                self._forget(block)
        return True

    # ------------------------------------------------------------------ fork and swap

    def fork(self, table: BlockTable) -> BlockTable:
        """A second request with the same past: same blocks, nothing copied.

        Whoever writes first into a shared block gets a copy of it (see `allocate`); the last one left
        writes in place.
        """
        if table.swap_slots:
            raise ValueError("this table is swapped out: swap it in before forking it")
        twin = BlockTable()
        for block in table.blocks:
            block.ref_count += 1
        twin.blocks, twin.block_ids = list(table.blocks), list(table.block_ids)
        twin.num_tokens, twin.num_hashed, twin.hashes = table.num_tokens, table.num_hashed, list(table.hashes)
        if twin.blocks:
            self._tables[id(twin)] = twin
        return twin

    def swap_out(self, table: BlockTable) -> bool:
        """Move a request's blocks to main memory. False if there is no room for them there."""
        if len(table.blocks) > len(self._free_slots):
            return False
        for block in table.blocks:
            slot = self._free_slots.pop()
            table.swap_slots.append(slot)
            self._copies.append(BlockCopy("out", block.block_id, slot))
        self.stats.swapped_out_blocks += len(table.blocks)
        self._give_back(table)
        return True

    def swap_in(self, table: BlockTable, must_fit: int = 0) -> bool:
        """Bring them back, into whatever blocks are free. False if too few are (see `allocate`)."""
        slots = table.swap_slots
        if max(len(slots), self.blocks_for(must_fit)) > self.allocator.num_free:
            return False
        for slot in slots:
            block = self._take()
            table.blocks.append(block)
            table.block_ids.append(block.block_id)
            self._copies.append(BlockCopy("in", slot, block.block_id))
        self.stats.swapped_in_blocks += len(slots)
        self._free_slots.extend(slots)
        table.swap_slots = []
        return True

    def take_copies(self) -> list[BlockCopy]:
        """The copies that must be made, in this order, before the next step writes anything."""
        copies, self._copies = self._copies, []
        return copies

    # ------------------------------------------------------------------ trust, but check

    def check_integrity(self) -> None:
        """Compare all books with each other. For tests, and for an engine that has nothing else to do.

        Raises:
            RuntimeError: they disagree; the message says on what. It is a bug, never a user's mistake.
        """

        def demand(condition: bool, what: str) -> None:
            if not condition:
                raise RuntimeError(f"the block manager's books are wrong: {what}")

        blocks = self.allocator.blocks
        held = [0] * self.num_blocks
        for table in self._tables.values():
            demand(table.block_ids == [b.block_id for b in table.blocks], "a table's ids and blocks differ")
            demand(
                len(table.blocks) >= self.blocks_for(table.num_tokens) or bool(table.swap_slots),
                f"{table.num_tokens} tokens in {len(table.blocks)} blocks",
            )
            for block in table.blocks:
                held[block.block_id] += 1
        free = list(self.allocator)
        demand(len(free) == self.allocator.num_free, "the free list's length and its count differ")
        demand(len({b.block_id for b in free}) == len(free), "a block is twice in the free list")
        is_free = [False] * self.num_blocks
        for block in free:
            is_free[block.block_id] = True
        for block in blocks[1:]:
            demand(
                block.ref_count == held[block.block_id],
                f"{block}, but {held[block.block_id]} tables point to it",
            )
            demand(
                is_free[block.block_id] == (block.ref_count == 0), f"{block} is free and in use, or neither"
            )
        demand(not is_free[0] and held[0] == 0, "the null block was given out")
        named = {b.block_id: b.content_hash for b in blocks if b.content_hash is not None}
        indexed = {i: name for name, same in self._blocks_by_hash.items() for i in same}
        demand(named == indexed, "the prefix cache and the blocks' names differ")
        slots = [s for table in self._tables.values() for s in table.swap_slots] + self._free_slots
        demand(sorted(slots) == list(range(self.num_swap_blocks)), "a swap slot is lost or used twice")
