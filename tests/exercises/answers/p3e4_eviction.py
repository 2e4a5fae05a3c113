from collections import OrderedDict


class Ordered:
    """Right: an OrderedDict, where a hit costs the same however long the row is."""

    def __init__(self, blocks):
        self.row = OrderedDict.fromkeys(blocks)

    def take(self):
        return self.row.popitem(last=False)[0]

    def hit(self, block):
        del self.row[block]

    def give_back(self, table, num_full):
        for i, block in enumerate(table):
            if i >= num_full:
                self.row[block] = None
                self.row.move_to_end(block, last=False)
        for block in reversed(table[:num_full]):
            self.row[block] = None


RIGHT = [Ordered]
