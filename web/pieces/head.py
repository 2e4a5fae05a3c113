"""One attention head, number by number: three words that can be followed with pencil and paper, and a head of a real model."""

from collections.abc import Sequence

from phase2_attention_kvcache.model import Transformer
from phase2_attention_kvcache.story.attention_by_hand import (
    EMBEDDINGS,
    W_K,
    W_Q,
    W_V,
    WORDS,
    Steps,
    attention_by_hand,
    steps_from,
)
from phase2_attention_kvcache.story.heads_at_work import watch
from web.pieces.piece import Piece, in_words


def head_of(model: Transformer, token_ids: Sequence[int], layer: int, head: int) -> Steps:
    """Return the steps of a head of a model (without grouped heads), by the same plain Python."""
    return steps_from(*(x[:, head].tolist() for x in watch(model, token_ids)[layer]))


def head_piece(text: str, num_layers: int, num_heads: int) -> Piece:
    """Make the piece with every number from a query to the output of the head.

    Args:
        text: shown first for a head of the page's model.
    """
    data = {
        "words": WORDS,
        "vectors": EMBEDDINGS,
        "matrices": [W_Q, W_K, W_V],
        "text": text,
        "layers": num_layers,
        "heads": num_heads,
    }
    steps = attention_by_hand(EMBEDDINGS, W_Q, W_K, W_V)
    last = len(WORDS) - 1
    lines = [f"{'':>5}  {'key':>9}  {'score':>5}  {'/ sqrt(3)':>9}  {'weight':>6}  {'value':>9}"]
    for word, key, score, scaled, weight, value in zip(
        WORDS, steps.k, steps.raw[last], steps.scaled[last], steps.weights[last], steps.v, strict=True
    ):
        shown = [" ".join(str(x) for x in vector) for vector in (key, value)]
        lines.append(f"{word:>5}  {shown[0]:>9}  {score:>5}  {scaled:>9.2f}  {weight:>6.3f}  {shown[1]:>9}")
    query, out = " ".join(map(str, steps.q[last])), " ".join(f"{x:.2f}" for x in steps.output[last])
    what = f"“{WORDS[last]}” looks at three words, with the query {query}:"
    end = f"The values, each times its weight, add up to {out}."
    return Piece("head", data, in_words("Numbers to change.", what, lines, end))
