"""Continuous batching: many users share every step, and no answer waits for the slowest.

A step for sixteen users takes little longer than a step for one, so users should share steps. Static batching
collects a batch, runs it to the end of its longest answer, and then takes the next one. An answer of ten tokens
waits for one of eight hundred, and most rows of the batch are idle most of the time.

Continuous batching forms the batch again before every step. A finished request leaves, and a waiting one is admitted in its place.
The loop is one method, `EngineCore.step` in `engine/core.py`.

You will see the article's three users A, B and C in both ways, then mixed traffic, and a picture of the
requests in the batch at each step. All on the real engine with the embedded model.

Source: Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models" (2022),
section 3.
"""

from labkit.lab import Lab, run_lab
from phase4_scheduler.story.continuous_batching_story import mixed_traffic, three_users


def story(lab: Lab) -> None:
    three_users(lab)
    mixed_traffic(lab)


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("model", "device", "dtype", "seed", "quick"), argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
