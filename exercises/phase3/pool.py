"""A memory of blocks that is small enough to look at: exercise 3.5 works on it."""


class Pool:
    """Blocks with reference counts, and what is written in them.

    Attributes:
        block_size: tokens a block.
        ref_count: for each block, how many tables point to it.
        memory: for each block, what is in its places; None where nothing was written.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.ref_count = [0] * num_blocks
        self.memory: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]
        self.copies: list[tuple[int, int]] = []  # (source, target), in order
        self._free = list(range(num_blocks - 1, 0, -1))

    def take(self) -> int:
        """A free block, with a count of 1."""
        block = self._free.pop()
        self.ref_count[block] = 1
        return block

    def copy(self, source: int, target: int) -> None:
        """Copy what is in a block: its keys and values in every layer."""
        self.memory[target] = list(self.memory[source])
        self.copies.append((source, target))
