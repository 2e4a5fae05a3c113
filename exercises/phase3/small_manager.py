"""A block manager in a hundred lines, for the debugging lab of phase 3. It merges equal blocks.

Two requests that share a beginning and start in the same step do not find each other's blocks, because the cache is still
empty. Each computes its own blocks. Afterwards the manager finds that they are equal, and keeps one of them.
The method that does this, `remember`, is in the notebook.

A block holds the tokens themselves in place of keys and values, so a user that reads through its table reads its text.
"""

from collections import deque
from collections.abc import Hashable


class SmallManager:
    """Blocks, tables and a prefix cache.

    Attributes:
        free: free blocks; the first one is taken next. The cache may still lead to a free block.
        ref_count: for each block, the number of tables that point to it.
        memory: for each block, the tokens written in it.
        tables, texts: for each user, its blocks and its tokens.
        cached: block hash of a full block -> the block. The hash (`name`) is simply the text up to the block's end.
    """

    def __init__(self, num_blocks: int, block_size: int = 4) -> None:
        self.block_size = block_size
        self.free = deque(range(1, num_blocks))
        self.ref_count = [0] * num_blocks
        self.memory: list[list[int]] = [[] for _ in range(num_blocks)]
        self.tables: dict[str, list[int]] = {}
        self.texts: dict[str, list[int]] = {}
        self.cached: dict[Hashable, int] = {}
        self.hits = 0

    # ------------------------------------------------------------------ one step: start, compute, remember

    def start(self, user: str, text: list[int]) -> None:
        """Start a request: use the cached blocks, and take new blocks for the rest."""
        self.texts[user], self.tables[user] = list(text), []
        for name in self.names(text[:-1]):  # the last token has to be computed
            block = self.cached.get(name)
            if block is None:
                break
            self.point_to(block)
            self.tables[user].append(block)
            self.hits += 1
        while len(self.tables[user]) * self.block_size < len(text):
            self.tables[user].append(self.take())

    def compute(self, user: str) -> None:
        """Run the model: write every place of this user's blocks."""
        size = self.block_size
        for i, block in enumerate(self.tables[user]):
            self.memory[block] = self.texts[user][i * size : (i + 1) * size]

    def remember(self, user: str) -> None:
        """After the step, enter this user's full blocks in the cache, and keep one of several equal blocks."""
        raise NotImplementedError("your turn")

    def write(self, user: str, token: int) -> None:
        """Write one more token."""
        if len(self.texts[user]) % self.block_size == 0:
            self.tables[user].append(self.take())
        self.texts[user].append(token)
        last = self.tables[user][-1]
        self.memory[last] = [*self.memory[last], token]

    def read(self, user: str) -> list[int]:
        """Return the tokens that attention reads through this user's table."""
        return [token for block in self.tables[user] for token in self.memory[block]]

    def end(self, user: str) -> None:
        """End the request: free its blocks, the last one first."""
        for block in reversed(self.tables.pop(user)):
            self.drop(block)
        del self.texts[user]

    # ------------------------------------------------------------------ hashes, counts and the free list

    def names(self, text: list[int]) -> list[Hashable]:
        """Return the hashes of the full blocks of a text."""
        size = self.block_size
        return [tuple(text[: end + size]) for end in range(0, len(text) - size + 1, size)]

    def take(self) -> int:
        """Take a free block for new content, and remove its old content from the cache."""
        block = self.free.popleft()
        for name in [name for name, b in self.cached.items() if b == block]:
            del self.cached[name]
        self.memory[block] = []
        self.ref_count[block] = 1
        return block

    def point_to(self, block: int) -> None:
        """Count one more table that points to this block."""
        if self.ref_count[block] == 0:
            self.free.remove(block)
        self.ref_count[block] += 1

    def drop(self, block: int) -> None:
        """Count one table less. Without a table the block is free."""
        self.ref_count[block] -= 1
        if self.ref_count[block] == 0:
            self.free.append(block)
