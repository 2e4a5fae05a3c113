from exercises.phase5.small_graph import SmallRunner


class NullBlock(SmallRunner):
    """Right: padding goes to block 0, as in SGLang."""

    def fill(self, tokens, slots):
        self.slots.zero_()
        for row, (token, slot) in enumerate(zip(tokens, slots)):
            self.tokens[row], self.slots[row] = token, slot


REST = "self.slots[n:] = -1"
BY_PLACE = "self.tokens[:n] = torch.tensor(tokens)\n        self.slots[:n] = torch.tensor(slots)"
RIGHT = [
    {"Runner": NullBlock, "cause = 3": 'cause = "3"'},
    # Padding does once more what the first row does.
    {BY_PLACE: f"self.tokens[:], self.slots[:] = tokens[0], slots[0]\n        {BY_PLACE}", REST: "pass"},
]
WRONG = {
    "another-cause": [{"cause = 3": "cause = 4"}, {"Runner": NullBlock, "cause = 3": 'cause = "2"'}],
}
