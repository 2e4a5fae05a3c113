"""The parts of one step of the engine, and their times.

A step for 64 users yields 64 tokens. It decides which requests compute what, turns that into tensors, reads every weight once,
reads every key and value once, and samples the tokens. The time of each part can be computed beforehand: bytes to read, divided by
the bandwidth of the memory.

You will see a step by its parts, for 1, 16 and 64 users, and the gain of two changes: weights that are repacked
once instead of at every step, and a kernel that reads keys and values where they lie.

It runs at GPT-2's size with random weights, on the CPU: speed does not depend on the weights.
"""

import argparse

from labkit.lab import run_lab
from phase4_scheduler.story.where_time_goes_story import two_changes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    formats = ["float32", "bfloat16"]
    parser.add_argument("--dtype", default="bfloat16", choices=formats, help="number format (bfloat16)")


def main(argv: list[str] | None = None) -> int:
    return run_lab(
        two_changes, __doc__, options=("dtype", "seed", "quick"), add_arguments=add_arguments, argv=argv
    )


if __name__ == "__main__":
    raise SystemExit(main())
