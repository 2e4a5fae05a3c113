"""The map of goodput: what was measured of it, as a file, and what virtual time says of the same.

The file holds, for each kind of traffic, each layout and each rate, the TTFT and TPOT of every request; the cost of a step, fitted
on the same machine; and the seconds of a handover. Promises are held against it afterwards.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from phase4_scheduler.simulator.cost_model import FittedCost
from phase5_real_gpu.parallel.goodput_trials import Kind, Layout, Promise, highest_rate, serve_virtually

MEASURED = Path(__file__).parent / "measured" / "cpu_xeon_2core.json"

KINDS = {"summaries": Kind(640, 24), "code": Kind(480, 48), "chat": Kind(64, 200)}
PROMISES = {"soon": Promise(0.15, 0.03), "steady": Promise(1.0, 0.004), "both": Promise(0.5, 0.005)}
LAYOUTS = [Layout(True, 256), *(Layout(False, chunk) for chunk in (32, 128, 512))]
RATES = {
    "summaries": (2.5, 4.0, 6.0, 9.0, 13.0),
    "code": (4.0, 6.0, 9.0, 12.0, 15.0),
    "chat": (4.0, 8.0, 12.0, 18.0, 28.0, 40.0),
}  # requests a second
REQUESTS = {"summaries": 30, "code": 40, "chat": 40}  # of a run

Pairs = list[tuple[float, float]]  # (TTFT, TPOT) of each request, seconds


@dataclass
class Measured:
    """What was measured on a machine.

    Attributes:
        about: machine, model, number format, date.
        prices: of a step (see `FittedCost`). handover: seconds.
        runs: traffic -> layout -> rate -> TTFT and TPOT of each request.
    """

    about: dict[str, Any] = field(default_factory=dict)
    prices: list[float] = field(default_factory=list)
    handover: float = 0.0
    runs: dict[str, dict[str, dict[str, Pairs]]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path, whole: bool = True) -> "Measured":
        """Raises LabError: no measurements, or some are missing although it should be whole."""
        try:
            measured = cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            raise LabError(f"{path} holds no measurements: make them with --measure") from None
        missing = [traffic for traffic in KINDS if traffic not in measured.runs]
        if not measured.prices:
            missing.append("cost")
        if whole and missing:
            raise LabError(f"{path} lacks {', '.join(missing)}: measure each of them with --measure")
        return measured

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(vars(self)) + "\n", encoding="utf-8")

    @property
    def cost(self) -> FittedCost:
        return FittedCost(tuple(self.prices))

    def goodput(self, traffic: str, split: bool, promise: Promise) -> float:
        """The highest rate that keeps a promise, with the chunk that does best."""
        runs = [self.runs[traffic][layout.name] for layout in LAYOUTS if layout.split == split]
        return max(
            highest_rate({float(rate): promise.kept_share(pairs) for rate, pairs in run.items()})
            for run in runs
        )


def virtual_goodput(
    measured: Measured,
    kind: Kind,
    split: bool,
    promise: Promise,
    rates: Sequence[float],
    requests: int,
    seed: int = 0,
) -> float:
    """The same in virtual time, at the same rates."""

    def share(layout: Layout, rate: float) -> float:
        traffic = kind.draw(requests, rate, seed)
        records = serve_virtually(
            layout, traffic, measured.cost, lambda _: measured.handover, num_blocks=4000
        )
        return promise.kept_share([(record.ttft, record.tpot) for record in records])

    layouts = [layout for layout in LAYOUTS if layout.split == split]
    return max(highest_rate({rate: share(layout, rate) for rate in rates}) for layout in layouts)
