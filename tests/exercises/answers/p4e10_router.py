class Owners:
    """Right: for each block who was given it."""

    def __init__(self, num_replicas, slack):
        self.slack, self.owners = slack, {}

    def choose(self, blocks, loads):
        least = loads.index(min(loads))
        left, known = set(range(len(loads))), 0
        for block in blocks:
            both = left & self.owners.get(block, set())
            if not both:
                break
            left, known = both, known + 1
        best = min(sorted(left), key=loads.__getitem__)
        if 2 * known < len(blocks) or loads[best] > loads[least] + self.slack:
            best = least
        for block in blocks:
            self.owners.setdefault(block, set()).add(best)
        return best


class First:
    """As vllm-router does: who was given a block first."""

    def __init__(self, num_replicas, slack):
        self.slack, self.owner = slack, {}

    def choose(self, blocks, loads):
        least = loads.index(min(loads))
        known = 0
        while known < len(blocks) and blocks[known] in self.owner:
            known += 1
        chosen = self.owner[blocks[known - 1]] if known else least
        if 2 * known < len(blocks) or loads[chosen] > loads[least] + self.slack:
            chosen = least
        for block in blocks:
            self.owner.setdefault(block, chosen)
        return chosen


RIGHT = [Owners]
WRONG = {"first-owner-only": First, "returns-nothing": {"return chosen": "pass"}}
