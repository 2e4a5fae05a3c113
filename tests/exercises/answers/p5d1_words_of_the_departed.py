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


class RepeatsAUser(SmallRunner):
    """Right: padding does once more what the first row does."""

    def fill(self, tokens, slots):
        self.tokens[:] = tokens[0]
        self.slots[:] = slots[0]
        self.tokens[: len(tokens)] = torch.tensor(tokens)
        self.slots[: len(slots)] = torch.tensor(slots)


class Planted(SmallRunner):
    def fill(self, tokens, slots):
        n = len(tokens)
        self.tokens[:n] = torch.tensor(tokens)
        self.slots[:n] = torch.tensor(slots)


class ClearsTokens(Planted):
    def fill(self, tokens, slots):
        self.tokens.zero_()
        super().fill(tokens, slots)


class OffByOne(Planted):
    """As for positions that begin with 1."""

    def fill(self, tokens, slots):
        super().fill(tokens, slots)
        self.slots[len(slots) + 1 :] = -1


class NextRowOnly(Planted):
    """Repairs what the symptom shows, one row."""

    def fill(self, tokens, slots):
        super().fill(tokens, slots)
        if len(slots) < ROWS:
            self.slots[len(slots)] = -1


class LastPlace(Planted):
    """Padding gets the last slot of the memory for its rubbish."""

    def fill(self, tokens, slots):
        super().fill(tokens, slots)
        self.slots[len(slots) :] = len(self.memory) - 1


class NewTensors(SmallRunner):
    """Right numbers, in other tensors."""

    def fill(self, tokens, slots):
        missing = ROWS - len(tokens)
        self.tokens = torch.tensor(tokens + [0] * missing)
        self.slots = torch.tensor(slots + [-1] * missing)


class RecordsAgain(NewTensors):
    """As before, and then it records, since the recording did not see it."""

    def fill(self, tokens, slots):
        super().fill(tokens, slots)
        self.replay = self.record()


class OnlyRecordsAgain(Planted):
    """Believes in sentence 2, and records in every step; the rows are as they were."""

    def fill(self, tokens, slots):
        super().fill(tokens, slots)
        self.replay = self.record()


class ClearsAll(Planted):
    """Clears after copying."""

    def fill(self, tokens, slots):
        super().fill(tokens, slots)
        self.slots.fill_(-1)


class ErasesBlocks(Planted):
    """Believes in sentence 4: what is freed is erased."""

    def end(self, user):
        for block in self.tables[user]:
            self.memory[block * self.block_size : (block + 1) * self.block_size] = 0
        super().end(user)


RIGHT = [(FillsUp, 3), (NullBlock, "3"), (RepeatsAUser, 3)]
WRONG = {
    "writes-into-anothers-block": [(Planted, 3), (ErasesBlocks, 4), (OnlyRecordsAgain, 2)],
    "token-cleared-slot-not": (ClearsTokens, 3),
    "some-rows-left": [(NextRowOnly, 3), (OffByOne, 3)],
    "padding-in-a-real-block": (LastPlace, 3),
    "recording-does-not-see-it": (NewTensors, 3),
    "recorded-anew": (RecordsAgain, 3),
    "step-not-stored": (ClearsAll, 3),
    "another-cause": [(FillsUp, 4), (NullBlock, "2")],
    "wrong-type": [(FillsUp, "three"), (FillsUp, 0)],
}
