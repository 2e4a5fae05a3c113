"""How many clusters are in the lengths of requests? k-means finds k groups whether there are groups or not.

So the answer needs a judge. The silhouette of a point compares the mean distance to its own group (a) with that to the nearest
other group (b): (b - a) / max(a, b) is near 1 where groups are apart, near 0 where the border runs through a crowd. Below a mean
of 0.5 there are no groups.

Sources: Rousseeuw, "Silhouettes" (1987); Kaufman, Rousseeuw, "Finding Groups in Data" (1990), chapter 2, for the 0.5.
"""

import numpy as np
from scipy.cluster.vq import kmeans, vq
from scipy.spatial.distance import cdist

NO_CLUSTERS = 0.5


def silhouette(points: np.ndarray, labels: np.ndarray) -> float:
    """Mean silhouette, -1 to 1. Takes n x n memory: give it a sample of a few hundred points."""
    groups, group = np.unique(labels, return_inverse=True)
    if len(groups) < 2:
        return 0.0
    member = labels[:, None] == groups  # [n, groups]
    sizes = member.sum(axis=0)
    totals = cdist(points, points) @ member  # [n, groups] distances of each point to all of a group
    inside = totals[member] / np.maximum(sizes[group] - 1, 1)
    outside = np.where(member, np.inf, totals / sizes).min(axis=1)
    widest = np.maximum(inside, outside)
    counts = (sizes[group] > 1) & (widest > 0)  # a point alone in its group has no silhouette: 0
    return float(((outside - inside)[counts] / widest[counts]).sum() / len(points))


def silhouettes(points: np.ndarray, seed: int = 0) -> dict[int, float]:
    """Mean silhouette of k groups, for k from 2 to 6.

    Args:
        points: [n, d]; lengths should come as logarithms, so that 100 and 200 are as far as 1,000 and 2,000.
    """
    rng = np.random.default_rng(seed)
    some = points[rng.permutation(len(points))[:500]]
    centres = {k: kmeans(points, k, iter=20, thresh=0, rng=rng)[0] for k in range(2, min(6, len(points)) + 1)}
    return {k: silhouette(some, vq(some, found)[0]) for k, found in centres.items()}


def count_clusters(silhouettes: dict[int, float]) -> int:
    """The number of groups with the highest silhouette, or one if none reaches NO_CLUSTERS."""
    best = max(silhouettes, key=silhouettes.__getitem__, default=1)
    return best if silhouettes.get(best, 0.0) >= NO_CLUSTERS else 1
