"""Attention: how each token gathers what it needs from the tokens before it.

Each token makes a query q (what it needs), a key k (what it offers) and a value v (what others receive).
A token compares its query with the keys of all tokens up to itself, turns the scores into weights that
add up to 1, and takes the sum of their values with these weights:

    out = softmax(q k^T / sqrt(head_dim)) v

You will follow three words by hand, split vectors into heads, and draw the attention weights of a head of a real
model (--layer, --text).

Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.2.
"""

import argparse
from collections.abc import Sequence

from labkit.lab import Lab, run_lab
from labkit.options import whole
from phase2_attention_kvcache.story import attention_story as chapters
from phase2_attention_kvcache.story.attention_in_models import load_sentence, show_heads


def story(lab: Lab) -> None:
    sentence = load_sentence(lab.args)  # first, so that a mistake in the options shows at once
    chapters.by_hand_story(lab)
    chapters.definition_story(lab)
    chapters.heads_story(lab)
    show_heads(lab, *sentence)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--text", default=chapters.DEFAULT_TEXT, help="the sentence to look at")
    layer = "layer to draw (the one with the strongest induction head)"
    parser.add_argument("--layer", type=whole(0, 999), help=layer)


def main(argv: Sequence[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("model", "seed", "quick"), add_arguments=add_arguments, argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
