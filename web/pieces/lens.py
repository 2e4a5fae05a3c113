"""The logit lens: how the answer forms, layer by layer."""

import torch

from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.model import Transformer
from phase2_attention_kvcache.story.inside_the_tower import guesses_by_layer
from web.pieces.piece import Piece, in_words

SHOWN = 4


def lens_piece(model: Transformer, tok: BPETokenizer) -> Piece:
    """Make the piece: the likeliest next tokens of a text, if the model ended before its first layer, after it, and so on."""
    text, rows = "The king took off his", []
    for probs in guesses_by_layer(model, torch.tensor(tok.encode(text))):
        best = probs.topk(SHOWN)
        rows.append([[tok.decode([i]), p] for i, p in zip(best.indices.tolist(), best.values.tolist())])
    lines = [
        f"after layer {layer}: " + ", ".join(f"{token!r} {p:.1%}" for token, p in row)
        for layer, row in enumerate(rows)
    ]
    fallback = in_words(f"The next token after “{text}” if the model ended early.", lines)
    return Piece("lens", {"text": text, "rows": rows}, fallback)
