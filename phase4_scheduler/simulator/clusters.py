"""Finding clusters in traffic, by a method that may also answer: there are none.

k-means puts points into k groups, whether there are groups or not. So its answer needs a judge. The
silhouette asks each point: how far is my own group on average (a), how far the nearest other one (b)?
(b - a) / max(a, b) is near 1 where groups are apart, near 0 where the border runs through a crowd. Try
several k and take the best; below 0.5 there are no groups worth the name.

Sources: Arthur, Vassilvitskii, "k-means++" (2007); Rousseeuw, "Silhouettes" (1987); Kaufman, Rousseeuw,
"Finding Groups in Data" (1990), chapter 2, for the 0.5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WORTH_THE_NAME = 0.5


@dataclass(frozen=True)
class Clusters:
    """Groups of points.

    Attributes:
        labels: [n] the group of each point.
        centres: [k, d]
        silhouettes: mean silhouette for each k that was tried.
    """

    labels: np.ndarray
    centres: np.ndarray
    silhouettes: dict[int, float]

    @property
    def count(self) -> int:
        return len(self.centres)


def k_means(
    points: np.ndarray, k: int, rng: np.random.Generator, restarts: int = 8
) -> tuple[np.ndarray, np.ndarray]:
    """Labels [n] and centres [k, d] of the best of several tries.

    Each try starts with far-apart points (k-means++), then: everybody joins the nearest centre, each centre
    moves to the middle of its group, until nothing moves.
    """
    best, least = None, np.inf
    for _ in range(restarts):
        centres = points[rng.integers(len(points), size=1)]
        while len(centres) < k:
            nearest = _squared_distances(points, centres).min(axis=1)
            # All points at a centre already (fewer than k different ones): any will do.
            odds = nearest / nearest.sum() if nearest.sum() else None
            centres = np.vstack([centres, points[rng.choice(len(points), p=odds)]])
        for _ in range(100):
            labels = _squared_distances(points, centres).argmin(axis=1)
            moved = np.array(
                [points[labels == i].mean(axis=0) if (labels == i).any() else centres[i] for i in range(k)]
            )
            if np.allclose(moved, centres):
                break
            centres = moved
        spread = _squared_distances(points, centres).min(axis=1).sum()
        if spread < least:
            best, least = (labels, centres), spread
    return best


def _squared_distances(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    return ((points[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2)


def silhouette(points: np.ndarray, labels: np.ndarray) -> float:
    """Mean silhouette, -1 to 1. Takes n x n memory: give it a sample of a few hundred points."""
    distances = np.sqrt(_squared_distances(points, points))
    groups = np.unique(labels)
    if len(groups) < 2:
        return 0.0
    totals = np.stack([distances[:, labels == g].sum(axis=1) for g in groups], axis=1)
    sizes = np.array([(labels == g).sum() for g in groups])
    own = labels[:, None] == groups[None, :]
    own_size = (own * sizes).sum(axis=1)
    inside = (totals * own).sum(axis=1) / np.maximum(own_size - 1, 1)
    outside = np.where(own, np.inf, totals / sizes).min(axis=1)
    widest = np.maximum(inside, outside)
    score = np.divide(outside - inside, widest, out=np.zeros(len(points)), where=widest > 0)
    return float(np.where(own_size > 1, score, 0.0).mean())


def find_clusters(points: np.ndarray, most: int = 6, seed: int = 0, sample: int = 500) -> Clusters:
    """As many groups as the silhouette likes best, or one if it likes none.

    Args:
        points: [n, d]; lengths should come as logarithms, so that 100 and 200 are as far as 1,000 and 2,000.
        most: largest k to try.
    """
    rng = np.random.default_rng(seed)
    some = rng.permutation(len(points))[:sample]
    scores, found = {}, {}
    for k in range(2, min(most, len(points)) + 1):
        found[k] = k_means(points, k, rng)
        scores[k] = silhouette(points[some], found[k][0][some])
    best = max(scores, key=scores.get, default=1)
    if not scores or scores[best] < WORTH_THE_NAME:
        return Clusters(np.zeros(len(points), dtype=int), points.mean(axis=0, keepdims=True), scores)
    return Clusters(*found[best], scores)


def purity(labels: Sequence[int], kinds: Sequence[str]) -> float:
    """Share of points that belong to the most frequent kind of their group: 1 if each group is one kind."""
    groups: dict[int, Counter[str]] = {}
    for label, kind in zip(labels, kinds, strict=True):
        groups.setdefault(int(label), Counter())[kind] += 1
    return sum(max(counts.values()) for counts in groups.values()) / len(kinds)
