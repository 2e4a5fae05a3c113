"""Five kinds of traffic, and what helps each: a table of scaling strategies, tried out row by row.

Many guides have such a table: for this traffic, pull that lever. Here four cards serve five kinds of traffic, in virtual
time and with the scheduler of this course. Each misses its SLO, and each in another way. Then every lever is
pulled on every kind: a card more, more sequences, smaller chunks, fewer bits, two cards a replica, a router that looks for
prefixes. Then old conversations wait in main memory, on an SSD or in a store for all; slow cards stand beside a fast one; and
(without --quick) a day with a quiet night is served by fleets of a fixed size and by fleets that grow with their queue or their
tokens per second, and regions and models share cards.

You will see: what broke, which lever the table recommends, whether it suffices, and what the others would have done.

    python phase4_scheduler/scaling_strategies.py
    python phase4_scheduler/scaling_strategies.py --card a100-40 --quick
    python phase4_scheduler/scaling_strategies.py --trace azure_2023_conv.csv        # the requests of the day

A step's time is computed from the card's data sheet, at 80% of it (66% on an RTX PRO 6000, as recorded). The traffic is our own: it is chosen so that an L4
misses its SLO. Another card may keep it.
"""

import argparse

from labkit.lab import Lab, run_lab
from phase1_tokens_embeddings.weights import CARDS, SHAPES
from phase4_scheduler.simulator.traffic import read_trace
from phase4_scheduler.story.scaling_story import a_day, mixed_cards, old_prefixes, the_cases, the_matrix


def story(lab: Lab) -> None:
    trace = read_trace(lab.args.trace) if lab.args.trace else []  # first: a wrong file is told at once
    the_matrix(lab, the_cases(lab))
    old_prefixes(lab, trace)
    mixed_cards(lab)
    if not lab.quick:  # a day has 86,400 requests
        a_day(lab, trace)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", default="llama-3-8b", metavar="NAME", help=f"one of {', '.join(SHAPES)} (llama-3-8b)")
    add("--card", default="l4", metavar="CARD", help=f"{', '.join(CARDS)} (l4)")
    add(
        "--trace",
        metavar="FILE",
        help="requests of the day (Azure CSV, Mooncake JSONL) and, with hash ids, for the levels (drawn chats)",
    )


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("seed", "quick"), add_arguments=add_arguments, argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
