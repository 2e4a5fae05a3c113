"""Answers to exercise 3.4 that learners give."""

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


class Clock:
    """Right: a number for each block, the smallest goes first."""

    def __init__(self, blocks):
        self.when = {block: i for i, block in enumerate(blocks)}
        self.late, self.early = len(self.when), 0

    def take(self):
        block = min(self.when, key=self.when.get)
        del self.when[block]
        return block

    def hit(self, block):
        self.when.pop(block)

    def give_back(self, table, num_full):
        for block in table[num_full:]:
            self.early -= 1
            self.when[block] = self.early
        for block in table[:num_full][::-1]:
            self.late += 1
            self.when[block] = self.late


ROW = "nameless[::-1] + self.blocks + named[::-1]"
LEAVES = "self.blocks.remove(block)"
RIGHT = [Ordered, Clock]
WRONG = {
    "head-evicted-first": {"[::-1]": ""},
    "evicts-most-recent": [{"pop(0)": "pop()"}, {ROW: "table[::-1] + self.blocks"}],
    "nameless-kept": {ROW: "self.blocks + table[::-1]"},
    "nameless-turned-round": {"nameless[::-1]": "nameless"},
    # As in an LRU cache that keeps what is in use; and a hit that does nothing.
    "hit-still-free": [{LEAVES: f"{LEAVES}\n        self.blocks.append(block)"}, {LEAVES: "pass"}],
    "changes-its-input": {ROW: f"{ROW}\n        table.clear()"},
}
