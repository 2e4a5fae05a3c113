"""Speculative decoding: draft several tokens cheaply and verify them in one step of the model.

A decode step reads all weights to compute one token. Computing four tokens reads them once as well. A proposer guesses the next
three, and the model checks all of them in one step. It accepts those that it would have written and replaces the first wrong
one. The answers do not change. Speed needs a good proposer and spare compute.

The script shows that greedy answers stay equal and sampled ones keep their distribution, what four tokens in one step cost and
bring with each proposer, and from how many users on drafts cost more than they gain: computed from
acceptance and step costs, then measured. Last comes a case on GPUs in which drafts gain, computed from data sheets.

Sources: Leviathan et al. (2023); Chen et al. (2023); Saxena, "Prompt Lookup Decoding" (2023); Li et al., "EAGLE-3" (2025).
"""

from labkit.lab import Lab, run_lab
from phase4_scheduler.story.speculative_story import (
    four_for_one,
    same_chances,
    same_words,
    where_it_gains,
    where_it_loses,
)


def story(lab: Lab) -> None:
    same_words(lab)
    same_chances(lab)
    four_for_one(lab)
    where_it_loses(lab)
    where_it_gains(lab)


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("device", "dtype", "seed", "quick"), argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
