REST = "self.slots[n:] = -1"
NULL_BLOCK = {REST: "self.slots[n:] = 0"}  # right: padding goes to block 0, as in SGLang
BY_PLACE = "self.tokens[:n] = torch.tensor(tokens)\n        self.slots[:n] = torch.tensor(slots)"
RIGHT = [
    NULL_BLOCK | {"cause = 3": 'cause = "3"'},
    # Padding does once more what the first row does.
    {BY_PLACE: f"self.tokens[:], self.slots[:] = tokens[0], slots[0]\n        {BY_PLACE}", REST: "pass"},
]
WRONG = {"another-cause": [{"cause = 3": "cause = 4"}, NULL_BLOCK | {"cause = 3": 'cause = "2"'}]}
