"""`make fuzz`: all property-based tests on fresh examples, round after round, until time is up.

    python -m tests.fuzz 5                                          # minutes
    python -m tests.fuzz 5 tests/phase3_paged_attention             # some tests only

A test is what hypothesis drives: pytest knows them by the marker `hypothesis`. The first round that fails ends it,
and says how to see the same failure again.
"""

import argparse
import os
import random
import subprocess
import sys
import time

ALL_WELL, NOTHING_LEFT = 0, 5  # exit codes of pytest


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "minutes", type=float, help="a test that runs when time is up is finished, the rest skipped"
    )
    parser.add_argument("tests", nargs="*", default=["tests"], help="files or folders (all)")
    args = parser.parse_args()
    until = time.time() + 60 * args.minutes
    rounds = 0
    while time.time() < until:
        rounds, seed = rounds + 1, random.randrange(2**32)
        print(f"round {rounds}, seed {seed}", flush=True)
        again = [*args.tests, "-m", "hypothesis", "--hypothesis-profile=fuzz", f"--hypothesis-seed={seed}"]
        code = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-n", "auto", *again],
            env=os.environ | {"FUZZ_UNTIL": str(until)},
        ).returncode
        if code not in (ALL_WELL, NOTHING_LEFT):
            print(
                "To see it again: add the line @reproduce_failure(...) that stands above to the test, or run"
            )
            print(f"    python -m pytest {' '.join(again)}")
            return code
    print(f"{rounds} rounds, and every property held")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
