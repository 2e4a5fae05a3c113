"""Answers to exercise 4.10."""

from tests.exercises.changed import changed


class Sets:
    def __init__(self, num_replicas, slack):
        self.slack = slack
        self.given = [set() for _ in range(num_replicas)]

    def choose(self, blocks, loads):
        def known(replica):
            n = 0
            while n < len(blocks) and blocks[n] in self.given[replica]:
                n += 1
            return n

        least = min(range(len(loads)), key=lambda r: loads[r])
        best = min(range(len(loads)), key=lambda r: (-known(r), loads[r]))
        if known(best) < len(blocks) / 2 or loads[best] - min(loads) > self.slack:
            chosen = least
        else:
            chosen = best
        self.given[chosen].update(blocks)
        return chosen


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


class LeastLoaded:
    def __init__(self, num_replicas, slack):
        pass

    def choose(self, blocks, loads):
        return loads.index(min(loads))


BRAKE = "loads[best] - min(loads) > self.slack"
LESS = "known(best) < len(blocks) / 2"
RIGHT = [Sets, Owners]
WRONG = {
    "never-looks": LeastLoaded,
    "drowns": changed(Sets, {f" or {BRAKE}": ""}),
    "any-beginning-will-do": changed(Sets, {LESS: "not known(best)"}),
    "more-than-half": changed(Sets, {LESS: "known(best) <= len(blocks) / 2"}),
    "slack-counts-as-drowning": changed(Sets, {BRAKE: BRAKE.replace(">", ">=")}),
    "looks-at-the-highest": changed(Sets, {BRAKE: "max(loads) - min(loads) > self.slack"}),
    "first-owner-only": First,
    "forgets-the-overflow": changed(
        Sets, {f"{LESS} or {BRAKE}": f"{BRAKE}:\n            return least\n        if {LESS}"}
    ),
    "writes-down-the-best": changed(Sets, {"self.given[chosen]": "self.given[best]"}),
    "first-among-equals": changed(Sets, {"(-known(r), loads[r])": "-known(r)"}),
    "not-from-the-beginning": changed(
        Sets, {"return n\n": "return len(self.given[replica].intersection(blocks))\n"}
    ),
    "returns-nothing": changed(Sets, {"return chosen": ""}),
}
