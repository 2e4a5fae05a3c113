"""Drills on call: find the fault of a real server by its metrics.

    lab run war_room --list                          # the drills
    lab run war_room --drill 4 --seed 2 --predict    # you are on call
    lab run war_room --drill 4 --seed 2              # shows the whole reasoning

A drill begins with a healthy "minute" of 12 seconds: users call `lab serve`. Then the drill puts in a fault, which the seed
selects: an option of a deployment, other traffic, or a program on the same cores. The script shows the figures before the fault
and with it. With --predict you can query more metrics in PromQL, and then name the cause. At the end the script shows the query
that excludes each other cause, removes the fault, and shows whether the figures return to their values.
"""

import argparse

from labkit.lab import Lab, run_lab
from labkit.options import whole
from phase4_scheduler.server.drills import DRILLS
from phase4_scheduler.story.war_room_story import list_drills, play_drill


def story(lab: Lab) -> None:
    if lab.args.list:
        list_drills(lab)
    else:
        play_drill(lab, lab.args.drill)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--drill", type=whole(1, len(DRILLS)), help="number of the drill (1; with --quick 5)")
    parser.add_argument("--list", action="store_true", help="the drills")


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("seed", "quick"), add_arguments=add_arguments, argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
