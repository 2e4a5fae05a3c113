"""Positions: how a model knows that "dog bites man" is not "man bites dog".

Attention by itself does not see order: it compares contents, whatever their positions. So positions have to be
put into the vectors. Three ways, in the order in which they were published:

    sinusoidal  a fixed wave pattern for each position, added to the token's vector   (Transformer, 2017)
    learned     a table with one trained vector for each position, added as well       (GPT-2, 2019)
    rotary      nothing is added: queries and keys are rotated, further at each position (Llama)

You will see which of them makes a score depend on the distance of two tokens alone, and why that matters.

Sources: Vaswani et al., "Attention Is All You Need" (2017), section 3.5; Su et al., "RoFormer" (2021),
section 3.2; "The Llama 3 Herd of Models" (2024), section 3.2, for the long context.
"""

from collections.abc import Sequence

from labkit.lab import Lab, run_lab
from phase2_attention_kvcache.story import positions_story as chapters


def story(lab: Lab) -> None:
    lab.say("""Take the query of one token and the key of another. Their contents stay the same in this script, and only
        their positions change. How does the score change?""")
    chapters.clocks_story(lab)
    chapters.kinds_story(lab)
    chapters.long_context_story(lab)


def main(argv: Sequence[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("seed", "quick"), argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
