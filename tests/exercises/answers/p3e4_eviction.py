"""Answers to exercise 3.4 that learners give."""

from collections import OrderedDict

from tests.exercises.changed import changed


class Base:
    def __init__(self, blocks):
        self.blocks = list(blocks)

    def take(self):
        return self.blocks.pop(0)

    def hit(self, block):
        self.blocks.remove(block)

    def give_back(self, table, num_full):
        self.blocks = table[num_full:][::-1] + self.blocks + table[:num_full][::-1]


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


class NamelessOneByOne(Base):
    """insert(0, ...) in the order of freeing: the last one inserted stands first."""

    def give_back(self, table, num_full):
        for block in table[num_full:][::-1]:
            self.blocks.insert(0, block)
        self.blocks += table[:num_full][::-1]


class HitMovesToTheEnd(Base):
    """As in an LRU cache that keeps what is in use."""

    def hit(self, block):
        self.blocks.remove(block)
        self.blocks.append(block)


class EmptiesTheTable(Base):
    """Takes the blocks off the table, one after the other."""

    def give_back(self, table, num_full):
        nameless = []
        while table:
            if len(table) > num_full:
                nameless.append(table.pop())
            else:
                self.blocks.append(table.pop())
        self.blocks = nameless + self.blocks


RIGHT = [Ordered, Clock]
WRONG = {
    "head-evicted-first": changed(Base, {"[::-1]": ""}),
    "evicts-most-recent": [
        changed(Base, {"pop(0)": "pop()"}),
        changed(
            Base,
            {"table[num_full:][::-1] + self.blocks + table[:num_full][::-1]": "table[::-1] + self.blocks"},
        ),
    ],
    "nameless-kept": changed(
        Base, {"table[num_full:][::-1] + self.blocks + table[:num_full][::-1]": "self.blocks + table[::-1]"}
    ),
    "nameless-turned-round": NamelessOneByOne,
    "hit-still-free": [HitMovesToTheEnd, changed(Base, {"self.blocks.remove(block)": "return block"})],
    "changes-its-input": EmptiesTheTable,
}
