KEEPS_BOTH = {"if same != table[i]:": "if False:"}  # right: no merging at all, as in vLLM
RIGHT = [
    {**KEEPS_BOTH, "cause = 3": 'cause = "3"'},
    # Right: the name leads to the latest block. The older one keeps its content, and its table.
    {"same = self.cached.setdefault(name, table[i])": "self.cached[name] = same = table[i]"},
]
WRONG = {
    "another-cause": [{"cause = 3": "cause = 4"}, {**KEEPS_BOTH, "cause = 3": 'cause = "1"'}],
    "wrong-type": [{"cause = 3": 'cause = "remember"'}, {"cause = 3": "cause = 6"}],
}
