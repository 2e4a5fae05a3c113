"""Blocks of memory: which request holds which, and which can be found again by their tokens."""

from typing import Any

from exercises.capstone.parts import course_part

Allocator = course_part("p3e1_allocate")
block_names, find_prefix = course_part("p3e3_prefix")


class BlockManager:
    """Gives blocks to requests, shares equal ones, and takes them back.

    `request.blocks` is a block table, `request.num_named` says how many of its blocks were entered in the prefix cache.
    `cached` leads from a name to the oldest block of that name.
    """

    def __init__(self, num_blocks: int, block_size: int = 16, prefix_caching: bool = True) -> None:
        self.num_blocks, self.block_size, self.prefix_caching = num_blocks, block_size, prefix_caching
        self.allocator = Allocator(num_blocks)
        self.names: dict[int, bytes] = {}
        self.same_name: dict[bytes, list[int]] = {}
        self.cached: dict[bytes, int] = {}

    def find(self, request: Any) -> list[int]:
        """Cached blocks that hold the beginning of a request's tokens. They are not taken yet."""
        return list(find_prefix(request.token_ids, self.block_size, self.cached))

    def allocate(self, request: Any, num_tokens: int, must_fit: int = 0) -> bool:
        """Room for a request's first `num_tokens` tokens; a new request gets its prefix hits.

        False if too few blocks are free, or too few for `must_fit` tokens. Then nothing has changed.
        """
        counts = self.allocator.ref_count
        prefix = [] if request.blocks else self.find(request)
        held = len(request.blocks) + len(prefix)
        missing = -(-num_tokens // self.block_size) - held
        # A cached block that no request holds is in the free list as well.
        needed = max(missing, -(-must_fit // self.block_size) - held) + sum(counts[b] == 0 for b in prefix)
        if needed > self.allocator.num_free:
            return False
        for block in prefix:  # first: taking new blocks might evict just these
            self.hit(block)
        request.blocks += prefix + [self.take() for _ in range(missing)]
        request.num_named += len(prefix)
        self.enter(request, num_tokens)
        return True

    def hit(self, block: int) -> None:
        if self.allocator.ref_count[block]:
            self.allocator.share(block)
        else:  # out of the middle of the free list
            self.allocator.free.remove(block)
            self.allocator.ref_count[block] = 1

    def take(self) -> int:
        """A free block. What it held can no longer be found: that is the eviction, oldest first."""
        block = self.allocator.take()
        if block in self.names:
            self.forget(block)
        return block

    def enter(self, request: Any, num_tokens: int) -> None:
        """Full blocks can be found from now on. The step that begins fills them before another request reads them."""
        size = self.block_size
        num_full = min(num_tokens, len(request.token_ids)) // size
        if self.prefix_caching and num_full > request.num_named:
            names = block_names(request.token_ids[: num_full * size], size)
            for block, name in list(zip(request.blocks, names))[request.num_named :]:
                if block not in self.names:
                    self.names[block] = name
                    self.same_name.setdefault(name, []).append(block)
                    self.cached.setdefault(name, block)
            request.num_named = num_full

    def forget(self, block: int) -> None:
        name = self.names.pop(block)
        same = self.same_name[name]
        same.remove(block)
        if same:
            self.cached[name] = same[0]
        else:
            del self.same_name[name], self.cached[name]

    def free(self, request: Any, num_filled: int | None = None) -> None:
        """Give back all blocks of a request, the last one first: the end of a text is forgotten before its beginning.

        Behind the first `num_filled` blocks (None: all of them) were entered, but will never be filled.
        """
        for block in request.blocks[len(request.blocks) if num_filled is None else num_filled :]:
            if block in self.names:
                self.forget(block)
        self.allocator.give_back(request.blocks[::-1])
        for block in request.blocks:
            if self.allocator.ref_count[block] == 0 and block not in self.names:
                self.allocator.free.remove(block)
                self.allocator.free.insert(0, block)  # never to be found again: taken before all others
        request.blocks, request.num_named = [], 0
