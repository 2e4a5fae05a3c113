"""A decode step as a recording, small enough to read: for the debugging lab of phase 5.

In place of keys and values, the memory holds the tokens themselves. So one can see who reads what.
"""

from collections import deque
from collections.abc import Callable

import torch

ROWS = 4  # a recorded step has four rows, however many users there are; the others are padding


class SmallRunner:
    """Blocks, users, and a recorded step.

    Attributes:
        memory: for each slot, the token that lies there. slot = block * block_size + offset.
        texts, tables: of each user, the tokens and the blocks.
        free: blocks that no user has. What was freed last is given out first. Block 0 never belongs to a user.
        tokens, slots: [ROWS], what the recording reads; a slot below 0: this row is not stored.
    """

    def __init__(self, num_blocks: int = 6, block_size: int = 4) -> None:
        self.block_size = block_size
        self.memory = torch.zeros(num_blocks * block_size, dtype=torch.long)
        self.free = deque(range(1, num_blocks))
        self.texts: dict[str, list[int]] = {}
        self.tables: dict[str, list[int]] = {}
        self.tokens = torch.zeros(ROWS, dtype=torch.long)
        self.slots = torch.full((ROWS,), -1)
        self.recordings = 0
        self.replay = self.record()

    def record(self) -> Callable[[], None]:
        """Record a step. What comes out knows the *addresses* of three tensors. It repeats the same work on
        whatever lies there."""
        self.recordings += 1
        self.recorded = tokens, slots, memory = self.tokens, self.slots, self.memory

        def replay() -> None:
            for row in range(ROWS):
                if slots[row] >= 0:
                    memory[slots[row]] = tokens[row]

        return replay

    def fill(self, tokens: list[int], slots: list[int]) -> None:
        """Bring a step's numbers to where the recording reads them. The lab is about this."""
        raise NotImplementedError

    def slot(self, user: str, position: int) -> int:
        """Where this user's token lies. Takes a block if a new one is needed."""
        table = self.tables[user]
        if position // self.block_size == len(table):
            table.append(self.free.popleft())
        return table[position // self.block_size] * self.block_size + position % self.block_size

    def start(self, user: str, prompt: list[int]) -> None:
        """A user comes. The prompt is computed at once, without the recording."""
        self.texts[user], self.tables[user] = list(prompt), []
        for position, token in enumerate(prompt):
            self.memory[self.slot(user, position)] = token

    def step(self, new: dict[str, int]) -> None:
        """A decode step: one new token for each of these users, by the recording."""
        slots = [self.slot(user, len(self.texts[user])) for user in new]
        for user, token in new.items():
            self.texts[user].append(token)
        self.fill(list(new.values()), slots)
        self.replay()

    def end(self, user: str) -> None:
        """A user goes. The blocks are free again."""
        self.free.extendleft(self.tables.pop(user))
        del self.texts[user]

    def read(self, user: str) -> list[int]:
        """What attention would find: the tokens in this user's slots."""
        return [int(self.memory[self.slot(user, i)]) for i in range(len(self.texts[user]))]
