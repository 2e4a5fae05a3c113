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


RIGHT = [right_without_division]
