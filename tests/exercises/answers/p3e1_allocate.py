class ListAndDict:
    """Right: other books."""

    def __init__(self, num_blocks):
        self.free, self.ref_count = list(range(1, num_blocks)), dict.fromkeys(range(num_blocks), 0)

    @property
    def num_free(self):
        return len(self.free)

    def take(self):
        if not self.free:
            raise MemoryError
        block = self.free.pop(0)
        self.ref_count[block] = 1
        return block

    def share(self, block):
        self.ref_count[block] = self.ref_count[block] + 1

    def give_back(self, blocks):
        if not all(self.ref_count[block] for block in blocks):
            raise ValueError(f"double free in {blocks}")
        for block in blocks:
            self.ref_count[block] -= 1
        self.free += [block for block in blocks if not self.ref_count[block]]


RIGHT = [ListAndDict]
