"""The attention weights of a real model, as a map to hover over."""

from collections.abc import Sequence

from torch import Tensor

from web.pieces.piece import Piece, in_words

MOST_TOKENS = 40


def attention_piece(weights: Sequence[Tensor], tokens: Sequence[str], layer: int = 0, head: int = 0) -> Piece:
    """Make a heat map for each layer and head, beside the text, in which the colour of a token is its weight.

    Args:
        layer, head: shown first, counted from 0. weights: for each layer [num_heads, N, N], as `weights_of` of Phase 2 gives them.
        tokens: the N tokens as text.

    Raises:
        ValueError: too many tokens for a map.
    """
    if not 1 <= len(tokens) <= MOST_TOKENS:
        raise ValueError(f"{len(tokens)} tokens: from 1 to {MOST_TOKENS}, so that the map can be read")
    data = {
        "tokens": list(tokens),
        # A token attends to itself and earlier tokens. Three digits are enough for a colour.
        "weights": [
            [[[round(x, 3) for x in row[: q + 1]] for q, row in enumerate(h)] for h in w.tolist()]
            for w in weights
        ],
        "layer": layer,
        "head": head,
    }
    lines = []
    for q, token in enumerate(tokens):
        best = int(weights[layer][head, q, : q + 1].argmax())
        lines.append(f"{token!r:>14} looks most at {tokens[best]!r:<14} {weights[layer][head, q, best]:.2f}")
    fallback = in_words(f"A map to hover over, here layer {layer + 1}, head {head + 1}.", lines)
    return Piece("attention", data, fallback)
