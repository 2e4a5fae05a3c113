"""Answers to exercise 4.8."""

from exercises.phase4.drafting import draw
from tests.exercises.changed import changed


def right(p, q, drafts, points):
    kept = []
    for j, x in enumerate(drafts):
        if points[j] < p[j][x] / q[j][x]:
            kept.append(x)
        else:
            weights = [max(a - b, 0) for a, b in zip(p[j], q[j])]
            kept.append(draw(weights, points[-1]))
            return kept
    kept.append(draw(p[-1], points[-1]))
    return kept


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


def greedily(p, q, drafts, points):
    for j, x in enumerate(drafts):
        if p[j].index(max(p[j])) != x:
            return [*drafts[:j], draw([max(a - b, 0) for a, b in zip(p[j], q[j])], points[-1])]
    return [*drafts, draw(p[-1], points[-1])]


def all_by_themselves(p, q, drafts, points):
    kept = [x for j, x in enumerate(drafts) if points[j] < p[j][x] / q[j][x]]
    return [*kept, draw(p[-1], points[-1])]


def no_bonus(p, q, drafts, points):
    out = right(p, q, drafts, points)
    stands = all(points[j] < p[j][x] / q[j][x] for j, x in enumerate(drafts))
    return out[:-1] if stands else out


REDRAWN = "kept.append(draw(weights, points[-1]))"
RIGHT = [right, right_without_division, right_with_min]
WRONG = {
    "resamples-from-p": changed(right, {"max(a - b, 0)": "a"}),
    "resamples-from-q": changed(right, {"max(a - b, 0)": "max(b - a, 0)"}),
    "greedy-comparison": greedily,
    "reuses-the-point": changed(right, {REDRAWN: "kept.append(draw(weights, points[j]))"}),
    "no-bonus-token": no_bonus,
    "nothing-in-its-place": changed(right, {REDRAWN: "pass"}),
    "keeps-the-rejected": changed(right, {REDRAWN: "kept.extend([x, draw(weights, points[-1])])"}),
    "goes-on-behind": all_by_themselves,
    "stands-with-p": changed(right, {"p[j][x] / q[j][x]": "p[j][x]"}),
    "ratio-upside-down": changed(right, {"points[j] < p[j][x] / q[j][x]": "points[j] * p[j][x] < q[j][x]"}),
    "bonus-from-the-row-before": changed(
        right,
        {"kept.append(draw(p[-1], points[-1]))": "kept.append(draw(p[max(len(p) - 2, 0)], points[-1]))"},
    ),
}
