"""Answers to exercise 4.8."""

from exercises.phase4.drafting import draw


def right_without_division(p, q, drafts, points):
    """A list of who stands first; weights that add up to 1."""
    stands = [points[j] * q[j][x] < p[j][x] for j, x in enumerate(drafts)]
    n = stands.index(False) if False in stands else len(drafts)
    weights = list(p[n])
    if n < len(drafts):
        weights = [max(0.0, a - b) for a, b in zip(p[n], q[n])]
        weights = [w / sum(weights) for w in weights]
    return [*drafts[:n], draw(weights, points[len(drafts)])]


def right_with_min(p, q, drafts, points):
    out = []
    for x, row_p, row_q, point in zip(drafts, p, q, points):
        if point >= min(1, row_p[x] / row_q[x]):
            return [*out, draw([a - min(a, b) for a, b in zip(row_p, row_q)], points[-1])]
        out.append(x)
    return [*out, draw(p[len(drafts)], points[-1])]


def all_by_themselves(p, q, drafts, points):
    kept = [x for j, x in enumerate(drafts) if points[j] < p[j][x] / q[j][x]]
    return [*kept, draw(p[-1], points[-1])]


REJECTED = "points[j] >= p[j][x] / q[j][x]"
LEFT = "max(a - b, 0)"
REDRAWN = "[*drafts[:j], draw(left, points[-1])]"
BONUS = "[*drafts, draw(p[-1], points[-1])]"
RIGHT = [right_without_division, right_with_min]
WRONG = {
    "resamples-from-p": {LEFT: "a"},
    "resamples-from-q": {LEFT: "max(b - a, 0)"},
    "greedy-comparison": {REJECTED: "p[j].index(max(p[j])) != x"},
    "reuses-the-point": {REDRAWN: "[*drafts[:j], draw(left, points[j])]"},
    "no-bonus-token": {BONUS: "drafts"},
    "nothing-in-its-place": {REDRAWN: "drafts[:j]"},
    "keeps-the-rejected": {REDRAWN: "[*drafts[: j + 1], draw(left, points[-1])]"},
    "goes-on-behind": all_by_themselves,
    "stands-with-p": {REJECTED: "points[j] >= p[j][x]"},
    "ratio-upside-down": {REJECTED: "points[j] * p[j][x] >= q[j][x]"},
    "bonus-from-the-row-before": {BONUS: "[*drafts, draw(p[max(len(p) - 2, 0)], points[-1])]"},
}
