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
NEW_TENSORS = {
    BY_PLACE: "self.tokens = torch.tensor(tokens + [0] * (len(self.tokens) - n))",
    REST: "self.slots = torch.tensor(slots + [-1] * (len(self.slots) - n))",
}
RECORDS = "\n        self.replay = self.record()"
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
        {REST: "pass"},
        {REST: ERASES, "cause = 3": "cause = 4"},  # believes in sentence 4: what is freed is erased
        {REST: f"pass{RECORDS}", "cause = 3": "cause = 2"},  # believes in sentence 2
    ],
    "token-cleared-slot-not": {REST: "self.tokens[n:] = 0"},
    # Repairs what the symptom shows, one row; and one place too far, as for positions that begin with 1.
    "some-rows-left": [{REST: "self.slots[n : n + 1] = -1"}, {REST: "self.slots[n + 1 :] = -1"}],
    "padding-in-a-real-block": {REST: "self.slots[n:] = len(self.memory) - 1"},
    "recording-does-not-see-it": NEW_TENSORS,
    "recorded-anew": {**NEW_TENSORS, REST: NEW_TENSORS[REST] + RECORDS},
    "step-not-stored": {REST: "self.slots.fill_(-1)"},
    "another-cause": [{"cause = 3": "cause = 4"}, {"Runner": NullBlock, "cause = 3": 'cause = "2"'}],
    "wrong-type": [{"cause = 3": 'cause = "three"'}, {"cause = 3": "cause = 0"}],
}
