"""What exercises 4.7 and 4.8 are told with: drawing with a given point."""

from collections.abc import Sequence
from itertools import accumulate


def draw(weights: Sequence[float], point: float) -> int:
    """Lay the tokens side by side, each as wide as its weight, and take the one under the point (0 to 1) of the line.

    >>> draw([0.3, 0.0, 0.1], point=0.8)
    2
    """
    ends = list(accumulate(weights))
    at = point * ends[-1]
    return next((token for token, end in enumerate(ends) if at < end), len(weights) - 1)
