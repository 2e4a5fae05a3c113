"""How long requests are: the one table of traffic patterns, for memory here and for servers in Phase 4.

ISL is the input sequence length, the tokens of the prompt. OSL is the output sequence length, the tokens of
the answer. An engine knows the first when a request comes, and the second only when it ends.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Lengths = tuple[np.ndarray, np.ndarray]  # ISL and OSL of n requests, two arrays of n
Draw = Callable[[np.random.Generator, int], Lengths]


@dataclass(frozen=True)
class TrafficPattern:
    """A kind of use.

    Attributes:
        isl, osl: least and most tokens of a prompt, of an answer.
        max_tokens: most tokens of a request, prompt and answer together.
        draw: (generator, n) -> ISL and OSL of n requests.
    """

    name: str
    isl: tuple[int, int]
    osl: tuple[int, int]
    max_tokens: int
    draw: Draw

    def total_lengths(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Final lengths of n requests, prompt and answer together: [n]."""
        isl, osl = self.draw(rng, n)
        return isl + osl


def uniform(name: str, isl: tuple[int, int], osl: tuple[int, int]) -> TrafficPattern:
    """Lengths drawn evenly from two ranges, both ends included."""

    def draw(rng: np.random.Generator, n: int) -> Lengths:
        return rng.integers(isl[0], isl[1] + 1, n), rng.integers(osl[0], osl[1] + 1, n)

    return TrafficPattern(name, isl, osl, isl[1] + osl[1], draw)


# The ranges of the source article.
MIX = (
    uniform("chat", (50, 200), (100, 500)),
    uniform("summarisation", (2000, 4000), (100, 300)),
    uniform("code", (200, 500), (500, 2000)),
)


def _mixed(rng: np.random.Generator, n: int) -> Lengths:
    drawn = np.array([pattern.draw(rng, n) for pattern in MIX])  # [pattern, isl/osl, n]
    chosen = drawn[rng.integers(0, len(drawn), n), :, np.arange(n)]
    return chosen[:, 0], chosen[:, 1]


def _long_tail(rng: np.random.Generator, n: int) -> Lengths:
    """Many short ones, few long ones, as people write: log-normal."""
    isl = np.clip(rng.lognormal(np.log(80), 1.0, n), 4, 1024).astype(int)
    return isl, np.clip(rng.lognormal(np.log(180), 0.9, n), 4, 1024).astype(int)


PATTERNS: dict[str, TrafficPattern] = {
    pattern.name: pattern
    for pattern in (
        *MIX,
        TrafficPattern("mixed", (50, 4000), (100, 2000), 4300, _mixed),  # a third of each
        TrafficPattern("long tail", (4, 1024), (4, 1024), 2048, _long_tail),
    )
}
