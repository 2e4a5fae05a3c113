"""The metrics of real nights for exercise 4.6: `night_N.json` holds a healthy minute and minutes with a fault.

They were recorded by tests/phase4_scheduler/server/drills/record_nights.py; each file names the machine.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from phase4_scheduler.server.drills import Recording

FOLDER = Path(__file__).parent
NIGHTS = {
    1: ("queue", "prompts", "frontend"),
    4: ("client", "seats", "pool"),
    5: ("timestamp", "off", "eviction"),
}
"""The faults that were put in, by night. (A "minute" of a night lasts 12 seconds, with a sample a second.)"""


@dataclass(frozen=True)
class Minute:
    """A minute of a night. `cause` is "nothing" for a healthy one. Ask queries at its `end`, in seconds."""

    night: int
    cause: str
    seed: int
    recording: Recording
    end: float

    @property
    def names(self) -> list[str]:
        return sorted({dict(labels)["__name__"] for labels in self.recording.series})

    def __str__(self) -> str:
        what = "a healthy minute" if self.cause == "nothing" else f"cause: {self.cause}"
        return f"night {self.night}, {what}, seed {self.seed}"


@cache
def minutes_of(night: int) -> list[Minute]:
    kept = json.loads((FOLDER / f"night_{night}.json").read_text(encoding="utf-8"))
    return [
        Minute(night, one["cause"], one["seed"], Recording.from_json(one["series"]), float(kept["window"]))
        for one in kept["minutes"]
    ]
