"""Helper of exercise 4.8: sampling with a given point."""

from collections.abc import Sequence
from itertools import accumulate


def draw(weights: Sequence[float], point: float) -> int:
    """Sample a token: put the tokens on a line, each as wide as its weight, and return the token at the point (0 to 1).

    >>> draw([0.3, 0.0, 0.1], point=0.8)
    2
    """
    ends = list(accumulate(weights))
    at = point * ends[-1]
    return next((token for token, end in enumerate(ends) if at < end), len(weights) - 1)
