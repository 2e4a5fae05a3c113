"""Speculative decoding: guess several tokens cheaply, and let the model check them all in one step.

A decode step reads all weights to compute one token. Computing four tokens reads them once as well. So somebody guesses
the next three, and the model checks all of them in a single step: what it would have written itself stands, the rest is
thrown away. Nothing about the answer changes. What it takes is a good guesser, and a machine with arithmetic to spare.

You will see that the words stay the same (greedy) and as likely as before (drawn), what four tokens in one step cost,
what a draft model and a copying proposer gain for one user, and from how many users on the drafts cost more than they
bring: worked out beforehand from acceptance and step costs, then measured.

Sources: Leviathan et al. (2023); Chen et al. (2023); Saxena, "Prompt Lookup Decoding" (2023); for trained drafters, Medusa
and EAGLE (2024).
"""

from labkit.lab import Lab, run_lab
from phase4_scheduler.story.speculative_story import (
    copying,
    four_for_one,
    same_chances,
    same_words,
    where_it_loses,
)


def story(lab: Lab) -> None:
    same_words(lab)
    same_chances(lab)
    four_for_one(lab)
    copying(lab)
    where_it_loses(lab)


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("device", "dtype", "seed", "quick"), argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
