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
import time

ALL_WELL, NOTHING_LEFT = 0, 5  # exit codes of pytest
PROFILE = ("--hypothesis-profile=fuzz",)


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
    while time.time() < until and code in (ALL_WELL, NOTHING_LEFT):
        chosen = [*(tests or ["tests/fuzzing", "tests"]), "-m", "hypothesis", f"--hypothesis-seed={seed}"]
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "auto", *PROFILE, *chosen]
        code = subprocess.run(command, env=os.environ | {"FUZZ_UNTIL": str(until)}).returncode
        seed += 1
    if found := code not in (ALL_WELL, NOTHING_LEFT):
        again = " ".join([*PROFILE, *chosen])
        print(
            f"Add the line @reproduce_failure(...) that stands above to the test, or run python -m pytest {again}"
        )
    return found


if __name__ == "__main__":
    raise SystemExit(main())
