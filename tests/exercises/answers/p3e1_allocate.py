"""Answers to exercise 3.1 that learners give."""

from collections import deque

from tests.exercises.changed import changed


class Base:
    def __init__(self, num_blocks):
        self.free = deque(range(1, num_blocks))
        self.ref_count = [0] * num_blocks

    @property
    def num_free(self):
        return len(self.free)

    def take(self):
        if not self.free:
            raise MemoryError("nothing is free")
        block = self.free.popleft()
        self.ref_count[block] = 1
        return block

    def share(self, block):
        self.ref_count[block] += 1

    def give_back(self, blocks):
        for block in blocks:
            if self.ref_count[block] == 0:
                raise ValueError("free already")
        for block in blocks:
            self.ref_count[block] -= 1
            if self.ref_count[block] == 0:
                self.free.append(block)


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


class FreeIsWhatNobodyCounts(ListAndDict):
    """No free list at all: the smallest block that nobody has."""

    def __init__(self, num_blocks):
        super().__init__(num_blocks)
        self.all = set(self.order)

    @property
    def num_free(self):
        return len(self.all) - len(self.counts)

    def take(self):
        left = self.all - self.counts.keys()
        if not left:
            raise MemoryError
        block = min(left)
        self.counts[block] = 1
        return block


class CountsTables(Base):
    """Right: counts down in a copy first, and keeps it if nothing fell below 0."""

    def give_back(self, blocks):
        left = list(self.ref_count)
        for block in blocks:
            left[block] -= 1
        if min(left) < 0:
            raise ValueError("free already")
        self.free += [block for block in blocks if left[block] == 0]
        self.ref_count = left


class Leaks(Base):
    """Shared blocks are skipped, and their count stays."""

    def give_back(self, blocks):
        if any(self.ref_count[b] == 0 for b in blocks):
            raise ValueError
        for block in blocks:
            if self.ref_count[block] > 1:
                continue
            self.ref_count[block] = 0
            self.free.append(block)


class AcceptsDoubleFree(Base):
    def give_back(self, blocks):
        for block in blocks:
            self.ref_count[block] -= 1
            if self.ref_count[block] <= 0:
                self.free.append(block)


class HalfDone(Base):
    """Refuses when it comes to the free block, with the others given back already."""

    def give_back(self, blocks):
        for block in blocks:
            if self.ref_count[block] == 0:
                raise ValueError("free already")
            self.ref_count[block] -= 1
            if self.ref_count[block] == 0:
                self.free.append(block)


class CountsDownFirst(Base):
    """Frees nothing when it refuses, but the counts are lowered by then."""

    def give_back(self, blocks):
        for block in blocks:
            self.ref_count[block] -= 1
        if min(self.ref_count[block] for block in blocks) < 0:
            raise ValueError("free already")
        self.free.extend(block for block in blocks if self.ref_count[block] == 0)


class Asserts(Base):
    def give_back(self, blocks):
        assert all(self.ref_count[block] for block in blocks), "free already"
        Base.give_back(self, blocks)


class EmptiesTheTable(Base):
    def give_back(self, blocks):
        Base.give_back(self, blocks)
        blocks.clear()


RIGHT = [ListAndDict, CountsTables]
WRONG = {
    "takes-from-the-wrong-end": changed(Base, {"popleft()": "pop()"}),
    "gives-back-to-the-front": [
        changed(Base, {"self.free.append(block)": "self.free.appendleft(block)"}),
        FreeIsWhatNobodyCounts,
    ],
    "taken-and-not-counted": changed(Base, {"self.ref_count[block] = 1": "pass"}),
    "null-block-given-out": changed(Base, {"range(1, num_blocks)": "range(num_blocks)"}),
    "block-given-out-twice": changed(Base, {"self.free.popleft()": "self.free[0]"}),
    "wrong-end-of-memory": [
        changed(Base, {"if not self.free:": "if False:"}),
        changed(Base, {'raise MemoryError("nothing is free")': "return None"}),
    ],
    "freed-while-shared": [
        changed(Base, {"self.ref_count[block] -= 1": "self.ref_count[block] = 0"}),
        changed(Base, {"self.ref_count[block] += 1": "return block"}),
    ],
    "blocks-lost": [Leaks, changed(Base, {"self.free.append(block)": "pass"})],
    "double-free": [AcceptsDoubleFree, Asserts, changed(Base, {"[0] * num_blocks": "[1] * num_blocks"})],
    "refused-and-half-done": [
        HalfDone,
        CountsDownFirst,
        changed(HalfDone, {"in blocks:": "in reversed(blocks):"}),
    ],
    "changes-its-input": EmptiesTheTable,
}
