RIGHT = {
    "[set() for _ in range(num_replicas)]": "[frozenset()] * num_replicas",
    "self.given[chosen].update(blocks)": "self.given[chosen] |= {*blocks}",
    "known[chosen] * 2 < len(blocks) or overloaded": "overloaded or known[chosen] < len(blocks) / 2",
}
WRONG = {"returns-nothing": {"return chosen": "pass"}}
