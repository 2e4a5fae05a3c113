"""One measured figure, and the limit of the machine that it is held against.

The scripts of this phase that measure put what they found into their report in this one form, so that
`compare_to_reference.py` can lay two machines side by side.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple


class Spread(NamedTuple):
    """Several values of one figure."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def show(self, unit: str = "") -> str:
        return f"{self.median:.2f}{unit} ({self.lowest:.2f} to {self.highest:.2f})"


def in_turn(names: Iterable[str], rounds: int) -> Iterator[str]:
    """What runs next, round by round; no engine always goes first: a, b; b, a; a, b; ..."""
    names = list(names)
    for number in range(rounds):
        yield from names[number % 2 :] + names[: number % 2]


@dataclass(frozen=True)
class Measurement:
    """One figure.

    Attributes:
        name: what was measured, the same on every machine: "decode-b64-4k", "ttft-gpt2-isl100".
        value, unit: the figure (the median, where it was taken several times).
        better: whether less or more of it is better.
        floor: the value that this machine's limit allows, in the same unit: the shortest time, or the
            greatest rate. None where no simple limit applies.
        limit: what sets the floor: "bandwidth", "arithmetic" or "launch".
        details: whatever helps to explain it: sizes, dtype, lowest and highest, settings.
    """

    name: str
    value: float
    unit: str
    better: Literal["lower", "higher"] = "lower"
    floor: float | None = None
    limit: Literal["bandwidth", "arithmetic", "launch"] | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def share_of_limit(self) -> float | None:
        """1.0: as fast as the machine can be. None where there is no floor."""
        if not self.floor or not self.value:
            return None
        return self.floor / self.value if self.better == "lower" else self.value / self.floor


def as_records(measurements: Iterable[Measurement]) -> list[dict[str, Any]]:
    """For a script's report, under "measurements"."""
    return [asdict(m) | {"share_of_limit": m.share_of_limit} for m in measurements]
