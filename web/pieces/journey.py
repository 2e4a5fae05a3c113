"""One prompt from the text to the next token, stage by stage."""

from collections.abc import Mapping

import torch

from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.model import NoCache, Transformer
from phase2_attention_kvcache.story.heads_at_work import weights_of
from web.pieces.piece import Piece, in_words

BARS, BEST, BLOCK_SIZE = 32, 5, 16


@torch.inference_mode()
def journey_piece(model: Transformer, tok: BPETokenizer, text: str, sections: Mapping[str, str]) -> Piece:
    """Make the piece with the six stages of a step for `text`. sections: the title of each section by its name."""
    c, ids = model.config, tok.encode(text)
    places = torch.arange(len(ids))
    vectors = model.embed(torch.tensor(ids), places)
    weights = [layer.mean(0) for layer in weights_of(model, ids)]
    logits = model.logits(model(torch.tensor(ids), places, NoCache())[-1:])[0]
    best = logits.topk(BEST).indices.tolist()
    probs = logits.softmax(-1)
    tokens = [tok.decode([i]) for i in ids]
    data = {
        "text": text,
        "sections": dict(sections),
        "config": {
            "layers": c.num_layers, "heads": c.num_kv_heads, "head_size": c.head_dim,
            "block_size": BLOCK_SIZE, "vocabulary": c.vocab_size,
        },
        "state": {
            "ids": ids,
            "tokens": tokens,
            "vectors": [[round(x, 4) for x in v[:BARS]] for v in vectors.tolist()],
            "weights": [[[round(x, 3) for x in row[: q + 1]] for q, row in enumerate(w.tolist())] for w in weights],
            "best": [[tok.decode([i]), float(logits[i]), float(probs[i])] for i in best],
        },
    }  # fmt: skip
    numbers = 2 * c.num_layers * c.num_kv_heads * c.head_dim * len(ids)
    seen = weights[-1][-1].topk(min(3, len(ids))).indices.tolist()
    lines = [
        f"1. Tokens: {len(ids)}: " + " ".join(f"{t!r} {i}" for t, i in zip(tokens, ids)),
        f"2. Vectors: {vectors.shape[1]} numbers for each token; {tokens[-1]!r} begins "
        + ", ".join(f"{x:.3f}" for x in vectors[-1, :4].tolist()),
        f"3. Attention: in layer {c.num_layers}, {tokens[-1]!r} attends most to "
        + ", ".join(f"{tokens[key]!r} ({weights[-1][-1, key]:.1%})" for key in seen),
        f"4. KV cache: {numbers:,} numbers in {-(-len(ids) // BLOCK_SIZE)} blocks of {BLOCK_SIZE} tokens",
        "5. Scores: " + ", ".join(f"{tok.decode([i])!r} {logits[i]:.2f} ({probs[i]:.1%})" for i in best),
        f"6. Next token: {tok.decode([best[0]])!r}",
    ]
    return Piece("journey", data, in_words(f"From the prompt “{text}” to the next token.", lines))
