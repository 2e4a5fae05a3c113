"""`make fuzz`: attackers, one after the other, each for its share of the time.

    python -m tests.fuzzing                                     # all of them, 5 minutes, a fresh seed
    python -m tests.fuzzing engine --minutes 30
    python -m tests.fuzzing engine --seed 7 --case 12           # one case again, as a finding says

They know only public names. What they find is mended, and becomes a test with fixed values.
"""

import argparse
import importlib
import random

ATTACKERS = {
    "engine": "random traffic and faults, against each request served alone",
    "model_files": "damaged model files",
    "http_bodies": "large, deep, wide, wrong and valid bodies, against memory and the latency of others",
    "signals": "Ctrl-C and SIGTERM while programs start, run and end",
    "command_line": "options of scripts, and damaged reports",
    "hand_ins": "hostile hand-ins among honest ones, against `lab grade`",
    "answers": "right answers to the exercises with a mistake in them, against the graders",
    "properties": "the suite's property-based tests on fresh examples",
}


def main() -> int:
    listed = "\n".join(f"  {name:14}{what}" for name, what in ATTACKERS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzzing",
        description=f"{__doc__}\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("attackers", nargs="*", help="by name (all)")
    parser.add_argument("--minutes", type=float, default=5, help="for all of them together (5)")
    parser.add_argument("--seed", type=int, help="the same seed makes the same cases (a fresh one)")
    parser.add_argument("--case", type=int, help="only this case of an attacker")
    args = parser.parse_args()
    if unknown := sorted(set(args.attackers) - set(ATTACKERS)):
        parser.error(f"no attacker {unknown[0]!r}: choose from {', '.join(ATTACKERS)}")
    names = args.attackers or list(ATTACKERS)
    seed = random.randrange(2**32) if args.seed is None else args.seed
    findings: list[str] = []
    for name in names:
        print(f"{name}: {ATTACKERS[name]} (seed {seed})", flush=True)
        run = importlib.import_module(f"tests.fuzzing.{name}").run
        if args.case is None:
            findings += run(seed, minutes=args.minutes / len(names))
        else:
            findings += run(seed, count=1, first=args.case)
    for finding in findings:
        print(finding)
    print(f"{len(findings)} findings")
    return bool(findings)


if __name__ == "__main__":
    raise SystemExit(main())
