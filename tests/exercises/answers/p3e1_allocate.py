"""Answers to exercise 3.1 that learners give."""


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


FREED = "self.free.append(block)"
COUNTED_DOWN = "self.ref_count[block] -= 1"
CHECKED = "if any(self.ref_count[block] == 0 for block in blocks):"
# Refuses when it comes to the free block, with the others given back already.
HALF_DONE = {
    CHECKED: "if False:",
    COUNTED_DOWN: f'if not self.ref_count[block]:\n                raise ValueError("free")\n            {COUNTED_DOWN}',
}
RIGHT = [ListAndDict]
WRONG = {
    "takes-from-the-wrong-end": {"popleft()": "pop()"},
    "gives-back-to-the-front": [
        {FREED: "self.free.appendleft(block)"},
        {FREED: f"{FREED}\n                self.free = deque(sorted(self.free))"},
    ],
    "taken-and-not-counted": {"self.ref_count[block] = 1": "pass"},
    "null-block-given-out": {"range(1, num_blocks)": "range(num_blocks)"},
    "block-given-out-twice": {"self.free.popleft()": "self.free[0]"},
    "wrong-end-of-memory": [
        {"if not self.free:": "if False:"},
        {'raise MemoryError("no free block")': "return None"},
    ],
    "freed-while-shared": [
        {COUNTED_DOWN: "self.ref_count[block] = 0"},
        {"self.ref_count[block] += 1": "return block"},
    ],
    "blocks-lost": [
        {
            COUNTED_DOWN: f"if self.ref_count[block] > 1:\n                continue\n            {COUNTED_DOWN}"
        },
        {FREED: "pass"},
    ],
    "double-free": [
        {CHECKED: "if False:", "if self.ref_count[block] == 0:": "if self.ref_count[block] <= 0:"},
        {"raise ValueError(": "raise AssertionError("},
        {"[0] * num_blocks": "[1] * num_blocks"},
    ],
    "refused-and-half-done": [
        HALF_DONE,
        {**HALF_DONE, "in blocks:\n": "in reversed(blocks):\n"},
        # Frees nothing when it refuses, but the counts are lowered by then.
        {
            f"{COUNTED_DOWN}\n            if": "if",
            CHECKED: f"for block in blocks:\n            {COUNTED_DOWN}\n        if min(self.ref_count) < 0:",
        },
    ],
    "changes-its-input": {FREED: f"{FREED}\n        blocks.clear()"},
}
