"""Finding clusters in traffic, by a method that may also answer: there are none.

k-means (scipy's) puts points into k groups, whether there are groups or not. So its answer needs a judge. The
silhouette asks each point: how far is my own group on average (a), how far the nearest other one (b)?
(b - a) / max(a, b) is near 1 where groups are apart, near 0 where the border runs through a crowd. Try
several k and take the best; below 0.5 there are no groups worth the name.

Sources: Rousseeuw, "Silhouettes" (1987); Kaufman, Rousseeuw, "Finding Groups in Data" (1990), chapter 2, for
the 0.5.
"""

from typing import NamedTuple

import numpy as np
from scipy.cluster.vq import kmeans, vq
from scipy.spatial.distance import cdist

WORTH_THE_NAME = 0.5


class Clusters(NamedTuple):
    """Groups of points.

    Attributes:
        labels: [n] the group of each point. centres: [k, d].
        silhouettes: mean silhouette for each k that was tried.
    """

    labels: np.ndarray
    centres: np.ndarray
    silhouettes: dict[int, float]


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


def find_clusters(points: np.ndarray, seed: int = 0) -> Clusters:
    """As many groups as the silhouette likes best, 6 at most, or one if it likes none.

    Args:
        points: [n, d]; lengths should come as logarithms, so that 100 and 200 are as far as 1,000 and 2,000.
    """
    rng = np.random.default_rng(seed)
    some = rng.permutation(len(points))[:500]
    centres = {k: kmeans(points, k, iter=20, thresh=0, rng=rng)[0] for k in range(2, min(6, len(points)) + 1)}
    labels = {k: vq(points, found)[0] for k, found in centres.items()}
    scores = {k: silhouette(points[some], found[some]) for k, found in labels.items()}
    best = max(scores, key=scores.get, default=1)
    if scores.get(best, 0.0) < WORTH_THE_NAME:
        return Clusters(np.zeros(len(points), dtype=int), points.mean(axis=0, keepdims=True), scores)
    return Clusters(labels[best], centres[best], scores)
