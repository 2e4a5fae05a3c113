"""Answers to exercise 4.10."""


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


DROWNS = "loads[chosen] > min(loads) + self.slack"
TOO_LITTLE = "known[chosen] * 2 < len(blocks)"
LEAST = "loads.index(min(loads))"
WRITTEN = "self.given[chosen].update(blocks)"
RIGHT = [Owners]
WRONG = {
    "never-looks": {f"{TOO_LITTLE} or drowns": "True"},
    "drowns": {" or drowns": ""},
    "any-beginning-will-do": {TOO_LITTLE: "known[chosen] == 0"},
    "more-than-half": {TOO_LITTLE: "known[chosen] * 2 <= len(blocks)"},
    "slack-counts-as-drowning": {DROWNS: "loads[chosen] >= min(loads) + self.slack"},
    "looks-at-the-highest": {DROWNS: "max(loads) > min(loads) + self.slack"},
    "first-owner-only": First,
    "forgets-the-overflow": {f"{DROWNS}\n": f"{DROWNS}\n        if drowns:\n            return {LEAST}\n"},
    "writes-down-the-best": {
        f"chosen = {LEAST}\n        {WRITTEN}": f"{WRITTEN}\n            return {LEAST}\n        {WRITTEN}"
    },
    "first-among-equals": {"(-known[replica], loads[replica])": "-known[replica]"},
    "not-from-the-beginning": {"return i\n": "return len(self.given[replica].intersection(blocks))\n"},
    "returns-nothing": {"return chosen": "pass"},
}
