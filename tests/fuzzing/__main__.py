"""`make fuzz`: the attackers and all other property-based tests on fresh examples, round after round, until time is up.

    python -m tests.fuzzing                                                 # 5 minutes, a fresh seed
    python -m tests.fuzzing tests/fuzzing/test_attacks.py -k model_files --minutes 30

A round that fails says how to see the same failure again.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ALL_WELL, NOTHING_LEFT = 0, 5  # exit codes of pytest
PROFILE = ("--hypothesis-profile=fuzz",)
# One test at a time for each process: else one gets all attackers, which stand first, and the other the quick tests.
SHARED = ("-n", "auto", "--maxschedchunk=1")


def tried(file: Path) -> Counter[str]:
    """What `count` has noted."""
    counts: Counter[str] = Counter()
    for line in file.read_text(encoding="utf-8").splitlines():
        number, what = line.split(" ", 1)
        counts[what] += int(number)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzzing", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # fmt: skip
    parser.add_argument("--minutes", type=float, default=5, help="no test begins later (5)")
    parser.add_argument("--seed", type=int, help="the same seed makes the same examples (a fresh one)")
    args, tests = parser.parse_known_args()
    seed = random.randrange(2**32) if args.seed is None else args.seed
    until = time.time() + 60 * args.minutes
    code = ALL_WELL
    with tempfile.NamedTemporaryFile() as counts:
        environment = os.environ | {"FUZZ_UNTIL": str(until), "FUZZ_COUNTS": counts.name}
        while time.time() < until and code in (ALL_WELL, NOTHING_LEFT):
            chosen = [*(tests or ["tests/fuzzing", "tests"]), "-m", "hypothesis", f"--hypothesis-seed={seed}"]
            command = [sys.executable, "-m", "pytest", "-q", "-x", *SHARED, *PROFILE, *chosen]
            code = subprocess.run(command, env=environment).returncode
            seed += 1
        done = tried(Path(counts.name))
    print(*(f"{number:>9,} {what}" for what, number in sorted(done.items())), sep="\n")
    if not done["tests begun"] and code == ALL_WELL:
        print(f"No test began: {args.minutes:g} minutes passed while pytest started. Give more --minutes.")
        return 1
    if found := code not in (ALL_WELL, NOTHING_LEFT):
        again = " ".join([*PROFILE, *chosen])
        print(
            f"Add the line @reproduce_failure(...) that stands above to the test, or run python -m pytest {again}"
        )
    return found


if __name__ == "__main__":
    raise SystemExit(main())
