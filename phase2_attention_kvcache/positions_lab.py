"""Positions: how a model knows that "dog bites man" is not "man bites dog".

Attention by itself sees a bag of tokens: it compares contents, wherever they stand. So position has to be
put into the vectors. Three ways, in the order in which the field took them up:

    sinusoidal  a fixed wave pattern for each position, added to the token's vector   (Transformer, 2017)
    learned     a table with one trained vector for each position, added as well       (GPT-2, 2019)
    rotary      nothing is added: queries and keys are turned, further at each position (Llama)

You will see which of them makes a score depend on the distance of two tokens alone, and why that matters.

Sources: Vaswani et al., "Attention Is All You Need" (2017), section 3.5; Su et al., "RoFormer" (2021),
section 3.2; "The Llama 3 Herd of Models" (2024), section 3.2, for the long context.
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.lab import Lab, run_lab
from phase2_attention_kvcache.story.positions_story import (
    _spread,
    clocks_story,
    layout_story,
    long_context_story,
)

# ---------------------------------------------------------------------- added to the vectors


# ---------------------------------------------------------------------- rotary


# ---------------------------------------------------------------------- the story


def story(lab: Lab) -> None:
    from phase2_attention_kvcache.story.positions_compared import compare_kinds, draw_scores, draw_speeds

    lab.say("""Take two tokens, one that asks (query) and one that is looked at (key). Their contents stay
        the same all through this story. Only the places change. What happens to the score of the two?""")
    clocks_story(lab)

    lab.title("Does a score depend on the distance alone?")
    scores = compare_kinds(lab.seed, num_places=8 if lab.quick else 64)
    for name, expected in (("rotary", False), ("learned", True), ("sinusoidal", True)):
        lab.predict(
            claim="rope-relative",
            question=f"{name}: the score changes when both tokens move on together, their distance kept",
            predicted=expected,
            measured=bool(scores[name].std(0).mean() > 1e-3 * scores[name].std()),
        )
    rows = []
    for name, s in scores.items():  # [places, distances]
        rows.append([name, s[:, 1].min().item(), s[:, 1].max().item(), _spread(s)])
    lab.table(
        f"Score of the same two tokens, measured at {len(s)} places of the context",
        ["positions", "distance 1: lowest", "highest", "change with place / change with distance"],
        rows,
        note="Query and key vectors are random but the same for all three. Learned: the table of `tales`.",
    )
    lab.record(place_over_distance={row[0]: row[3] for row in rows})
    lab.figure(draw_scores(scores), "positions_scores")
    lab.say("""Why rotary alone does this: turning the query by m steps and the key by n steps leaves an angle
        of m - n steps between them, and a dot product only knows the angle. Where a position is added
        instead, the score also holds products of one token's content with the other one's place. A trained
        model can learn to make good use of those, but nothing guarantees it. Careful: "depends on the distance
        only" is said of two given contents. Other contents, another score.""")
    layout_story(lab)
    long_context_story(lab)
    lab.figure(draw_speeds(), "rotary_speeds")


def main(argv: Sequence[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("seed", "quick"), argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
