"""One attention head, number by number: three words that can be followed with pencil and paper, and a head of a real model."""

from collections.abc import Sequence

import torch

from phase2_attention_kvcache.model import NoCache, Transformer
from phase2_attention_kvcache.story.attention_by_hand import (
    EMBEDDINGS,
    W_K,
    W_Q,
    W_V,
    WORDS,
    Steps,
    attention_by_hand,
    matmul,
    softmax,
)
from web.pieces.piece import HOW_TO_RUN, Piece


@torch.inference_mode()
def head_of(model: Transformer, token_ids: Sequence[int], layer: int, head: int) -> Steps:
    """The same matrices for a head of a model, by the same plain Python."""
    kept = []

    class Keeping(NoCache):
        def attend(self, at: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            if at == layer:
                kept.extend(x[:, head].tolist() for x in (q, k, v))
            return super().attend(at, q, k, v)

    model(torch.tensor(token_ids), torch.arange(len(token_ids)), Keeping())
    q, k, v = kept
    raw = matmul(q, list(zip(*k)))
    scaled = [[s / len(q[0]) ** 0.5 for s in row] for row in raw]
    masked = [[s if j <= i else -torch.inf for j, s in enumerate(row)] for i, row in enumerate(scaled)]
    weights = [softmax(row) for row in masked]
    return Steps(q, k, v, raw, scaled, masked, weights, matmul(weights, v))


def head_piece(text: str, num_layers: int, num_heads: int) -> Piece:
    """Every number between a query and what its token takes.

    Args:
        text: where the head of the page's model begins.
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
    fallback = (
        f"Numbers to change. {HOW_TO_RUN}\n\n“{WORDS[last]}” looks at three words, with the query {query}:\n\n"
        + "\n".join(lines)
        + f"\n\nThe values, each times its weight, add up to {out}."
    )
    return Piece("head", data, fallback)
