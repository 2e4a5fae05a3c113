"""Answers to the debugging lab of phase 5 that learners give."""

import torch

from exercises.phase5.small_graph import ROWS, SmallRunner


class FillsUp(SmallRunner):
    """Right: everything is written anew, in place."""

    def fill(self, tokens, slots):
        missing = ROWS - len(tokens)
        self.tokens.copy_(torch.tensor(tokens + [0] * missing))
        self.slots.copy_(torch.tensor(slots + [-1] * missing))


class NullBlock(SmallRunner):
    """Right: padding goes to block 0, as in SGLang."""

    def fill(self, tokens, slots):
        self.slots.zero_()
        for row, (token, slot) in enumerate(zip(tokens, slots)):
            self.tokens[row], self.slots[row] = token, slot


REST = "self.slots[n:] = -1"
BY_PLACE = "self.tokens[:n] = torch.tensor(tokens)\n        self.slots[:n] = torch.tensor(slots)"
ERASES = """pass

    def end(self, user):
        for block in self.tables[user]:
            self.memory[block * self.block_size : (block + 1) * self.block_size] = 0
        super().end(user)"""
RIGHT = [
    {"Runner": FillsUp},
    {"Runner": NullBlock, "cause = 3": 'cause = "3"'},
    # Padding does once more what the first row does.
    {BY_PLACE: f"self.tokens[:], self.slots[:] = tokens[0], slots[0]\n        {BY_PLACE}", REST: "pass"},
]
WRONG = {
    "writes-into-anothers-block": [
        {REST: ERASES, "cause = 3": "cause = 4"},  # believes in sentence 4: what is freed is erased
        {
            REST: "pass\n        self.replay = self.record()",
            "cause = 3": "cause = 2",
        },  # believes in sentence 2
    ],
    "another-cause": [{"cause = 3": "cause = 4"}, {"Runner": NullBlock, "cause = 3": 'cause = "2"'}],
    "wrong-type": [{"cause = 3": 'cause = "three"'}, {"cause = 3": "cause = 0"}],
}
