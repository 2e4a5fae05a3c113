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


RIGHT = [Owners]
WRONG = {"returns-nothing": {"return chosen": "pass"}}
