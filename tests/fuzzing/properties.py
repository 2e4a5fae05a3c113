"""All property-based tests of the suite on fresh examples, round after round, until time is up.

A test is what hypothesis drives: pytest knows them by the marker `hypothesis`. A round that fails says how to see the
same failure again.
"""

import os
import subprocess
import sys
import time

ALL_WELL, NOTHING_LEFT = 0, 5  # exit codes of pytest


def run(seed: int, minutes: float | None = None, count: int | None = None, first: int = 0) -> list[str]:
    """Rounds `first`, `first` + 1, ...: `count` of them, or as many as begin in time. A test that runs when time is up is finished, the rest skipped."""
    until = time.time() + 60 * (minutes or 1e6)
    rounds = 0
    while time.time() < until and (count is None or rounds < count):
        again = [
            "tests",
            "-m",
            "hypothesis",
            "--hypothesis-profile=fuzz",
            f"--hypothesis-seed={seed + first + rounds}",
        ]
        code = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-n", "auto", *again],
            env=os.environ | {"FUZZ_UNTIL": str(until)},
        ).returncode
        rounds += 1
        if code not in (ALL_WELL, NOTHING_LEFT):
            return [
                "properties: add the line @reproduce_failure(...) that stands above to the test, or run "
                f"python -m pytest {' '.join(again)}"
            ]
    print(f"properties, seed {seed}: {rounds} rounds")
    return []
