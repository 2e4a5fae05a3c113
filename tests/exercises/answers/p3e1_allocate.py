class ListAndDict:
    """Right: other books."""

    def __init__(self, num_blocks):
        self.order, self.counts = list(range(1, num_blocks)), {}

    @property
    def num_free(self):
        return len(self.order)

    def take(self):
        if not self.order:
            raise MemoryError
        block = self.order.pop(0)
        self.counts[block] = 1
        return block

    def share(self, block):
        self.counts[block] = self.counts[block] + 1

    def give_back(self, blocks):
        if not all(block in self.counts for block in blocks):
            raise ValueError(f"double free in {blocks}")
        for block in blocks:
            if self.counts[block] == 1:
                del self.counts[block]
                self.order.append(block)
            else:
                self.counts[block] -= 1


RIGHT = [ListAndDict]
