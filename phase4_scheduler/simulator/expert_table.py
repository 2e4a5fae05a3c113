"""How long does a step take, if two cards share a model's experts? See `expert_parallel.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from phase4_scheduler.simulator.kernel_table import KernelTable, at_size, read_table
from phase4_scheduler.simulator.step_size import StepSize


@dataclass(frozen=True)
class ExpertTable:
    """Seconds = step + the slower rank's own kernels + layers x (experts + two trips between the cards).

    Attributes:
        own: the kernels that each rank starts for its own tokens.
        experts: microseconds of one layer's experts on one rank, indexed by the tokens of the fuller rank.
        trip_bytes: that a token sends to another card, and gets back, in each layer.
        bandwidth, latency: of the link: bytes a second, seconds.
        step: seconds that a step takes besides.

    What it leaves out: that tokens may like some experts better than others.
    """

    own: KernelTable
    experts: Sequence[float]
    trip_bytes: int
    bandwidth: float
    latency: float
    step: float = 0.0

    def seconds(self, sizes: Sequence[StepSize]) -> float:
        """Args: sizes: of the ranks that have something to do."""
        tokens = max(size.num_tokens for size in sizes)
        trip = self.latency + tokens * self.trip_bytes / self.bandwidth
        layer = 1e-6 * at_size(self.experts, tokens) + 2 * trip
        return self.step + max(map(self.own.seconds, sizes)) + self.own.num_layers * layer


def expert_line(path: Path, num_experts: int, experts_per_token: int, num_ranks: int) -> list[float]:
    """Microseconds of one layer's experts on one rank, by the tokens of each rank, from a table by tokens and experts
    in use.

    A rank sees the tokens of all ranks, but holds only its part of the experts of each: as much work as all experts of
    its own tokens. How many experts are in use: each token leaves one out with the same chance.
    """
    table = read_table(path, "tokens", "activated_experts", "time_us")
    counts = np.unique(table["activated_experts"])
    tokens = np.arange(table["tokens"].max() + 1)
    parts = [table[table["activated_experts"] == count] for count in counts]
    lines = np.stack([np.interp(tokens, part["tokens"], part["time_us"]) for part in parts])
    unused = (1 - experts_per_token / num_experts) ** (num_ranks * tokens)
    used = num_experts / num_ranks * (1 - unused)
    return [float(np.interp(n, counts, line)) for n, line in zip(used, lines.T)]
