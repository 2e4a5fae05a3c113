RIGHT = {
    "[set() for _ in range(num_replicas)]": "[frozenset()] * num_replicas",
    # A tree: which blocks came behind which beginning.
    "self.given[chosen].update(blocks)": "self.given[chosen] |= {tuple(blocks[: i + 1]) for i in range(len(blocks))}",
    "if block not": "if tuple(blocks[: i + 1]) not",
    "known[chosen] * 2 < len(blocks) or overloaded": "overloaded or known[chosen] < len(blocks) / 2",
}
WRONG = {"returns-nothing": {"return chosen": "pass"}}
