"""Answers to the debugging lab of phase 3 that learners give."""

FOUND = "same = self.cached.setdefault(name, table[i])"
COUNTED, FOLLOWS, DROPPED = "self.point_to(same)", "table[i] = same", "self.drop(table[i])"
KEEPS_BOTH = {"if same != table[i]:": "if False:"}  # right: no merging at all, as in vLLM
RIGHT = [
    {**KEEPS_BOTH, "cause = 3": 'cause = "3"'},
    # Right: the name leads to the latest block. The older one keeps its content, and its table.
    {FOUND: "self.cached[name] = same = table[i]"},
]
WRONG = {
    "reads-anothers-text": [
        {COUNTED: "pass", FOLLOWS: "pass"},
        # Repairs what the symptom shows, one block.
        {
            COUNTED: "if i == 0:\n                    self.point_to(same)",
            FOLLOWS: "if i == 0:\n                    table[i] = same",
        },
    ],
    "pointed-to-and-not-counted": {COUNTED: "pass"},
    "duplicate-leaks": {DROPPED: "pass"},
    # The symptom is gone, and so is the cache.
    "nothing-is-remembered": {"table = self.tables[user]": "return self.cached.clear()"},
    "wrong-text": {FOLLOWS: "del table[i]; table.insert(0, same)"},
    "freed-twice": {FOLLOWS: "self.free.append(table[i]); table[i] = same"},
    "another-cause": [{"cause = 3": "cause = 4"}, {**KEEPS_BOTH, "cause = 3": 'cause = "1"'}],
    "wrong-type": [{"cause = 3": 'cause = "remember"'}, {"cause = 3": "cause = 6"}],
}
