"""Recorded metrics of real drills for exercise 4.6: `drill_N.json` holds a healthy minute and minutes with a fault.

Each file names its machine. It was written by a loop over `Stage`: play a drill, keep the last window of its recording.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from phase4_scheduler.server.drills import Recording

FOLDER = Path(__file__).parent
RECORDED = {
    1: ("queue", "prompts", "frontend"),
    4: ("client", "max_num_seqs", "pool"),
    5: ("timestamp", "off", "eviction"),
}
"""The faults that were put in, by drill. (A "minute" of a drill lasts 12 seconds, with one sample per second.)"""


@dataclass(frozen=True)
class Minute:
    """A minute of a drill. `cause` is "nothing" for a healthy one. `end`, in seconds, is the time to query."""

    drill: int
    cause: str
    seed: int
    recording: Recording
    end: float

    @property
    def names(self) -> list[str]:
        return sorted({dict(labels)["__name__"] for labels in self.recording.series})

    def __str__(self) -> str:
        what = "a healthy minute" if self.cause == "nothing" else f"cause: {self.cause}"
        return f"drill {self.drill}, {what}, seed {self.seed}"


@cache
def minutes_of(drill: int) -> list[Minute]:
    kept = json.loads((FOLDER / f"drill_{drill}.json").read_text(encoding="utf-8"))
    return [
        Minute(drill, one["cause"], one["seed"], Recording.from_json(one["series"]), float(kept["window"]))
        for one in kept["minutes"]
    ]
