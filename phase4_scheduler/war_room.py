"""Incidents on call: a fault in the real server, to be found by its metrics.

    lab run war_room --list                          # the incidents, and your score
    lab run war_room --drill 4 --seed 2 --predict    # you are on call
    lab run war_room --drill 4 --seed 2              # watch how it is reasoned out

An incident begins with a healthy minute: `lab serve` runs, users call it, all is well. (The minute is a short one.) Then a
fault is put into it, drawn by the seed: an option of a deployment, traffic that has changed, a program on the same cores.
You see the figures before and during. With --predict you may ask for more, in PromQL, and then name the cause. In the
end you see the query that speaks against each other cause, the fault is taken out, and you see whether the figures come back.
"""

import argparse

from labkit.lab import Lab, run_lab
from labkit.options import whole
from phase4_scheduler.server.drills import DRILLS
from phase4_scheduler.story.war_room_story import list_nights, play_night


def story(lab: Lab) -> None:
    if lab.args.list:
        list_nights(lab)
    else:
        play_night(lab, lab.args.drill)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--drill", type=whole(1, len(DRILLS)), help="which night (1; with --quick 5)")
    parser.add_argument("--list", action="store_true", help="the nights, and your score")


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("seed", "quick"), add_arguments=add_arguments, argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
