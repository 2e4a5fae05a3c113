"""A decode step as a recording, small enough to read, for the debugging lab of phase 5.

The memory holds the tokens themselves in place of keys and values, so `read` shows which text a user reads.
"""

from collections import deque
from collections.abc import Callable

import torch

ROWS = 4  # a recorded step has four rows, for any number of users; rows without a user are padding


class SmallRunner:
    """Blocks, users, and a recorded step.

    Attributes:
        memory: the token in each slot. slot = block * block_size + offset.
        texts, tables: the tokens and the blocks of each user.
        free: blocks without a user. The block freed last is taken first. Block 0 never belongs to a user.
        tokens, slots: [ROWS], the numbers that the recording reads; a slot below 0: this row is not stored.
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
        """Record a step. The recording stores the *addresses* of three tensors, and repeats the same work on
        their current content."""
        self.recordings += 1
        self.recorded = tokens, slots, memory = self.tokens, self.slots, self.memory

        def replay() -> None:
            for row in range(ROWS):
                if slots[row] >= 0:
                    memory[slots[row]] = tokens[row]

        return replay

    def fill(self, tokens: list[int], slots: list[int]) -> None:
        """Copy a step's numbers to the tensors that the recording reads. This method is the subject of the lab."""
        raise NotImplementedError

    def slot(self, user: str, position: int) -> int:
        """Return the slot of this user's token. Takes a new block if necessary."""
        table = self.tables[user]
        if position // self.block_size == len(table):
            table.append(self.free.popleft())
        return table[position // self.block_size] * self.block_size + position % self.block_size

    def start(self, user: str, prompt: list[int]) -> None:
        """Start a user. The prompt is computed at once, without the recording."""
        self.texts[user], self.tables[user] = list(prompt), []
        for position, token in enumerate(prompt):
            self.memory[self.slot(user, position)] = token

    def step(self, new: dict[str, int]) -> None:
        """Run a decode step with the recording: one new token for each of these users."""
        slots = [self.slot(user, len(self.texts[user])) for user in new]
        for user, token in new.items():
            self.texts[user].append(token)
        self.fill(list(new.values()), slots)
        self.replay()

    def end(self, user: str) -> None:
        """End a user, and free its blocks."""
        self.free.extendleft(self.tables.pop(user))
        del self.texts[user]

    def read(self, user: str) -> list[int]:
        """Return the tokens that attention would read: those in this user's slots."""
        return [int(self.memory[self.slot(user, i)]) for i in range(len(self.texts[user]))]
