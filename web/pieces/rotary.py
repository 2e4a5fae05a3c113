"""Rotary positions on dials, and the score of a query and a key at any two places."""

import torch

from phase2_attention_kvcache.model.positions import apply_rotary, rotary_frequencies
from web.pieces.piece import Piece, in_words

HEAD_DIM = 16


def score(query: list[float], key: list[float], places: tuple[int, int]) -> float:
    """Return the attention score of a query at one place and a key at another."""
    angles = torch.outer(torch.tensor(places).double(), rotary_frequencies(HEAD_DIM).double())
    both = torch.tensor([query, key]).double()[:, None]
    q, k = apply_rotary(both, angles.cos(), angles.sin())[:, 0]
    return float(q @ k) / HEAD_DIM**0.5


def rotary_piece() -> Piece:
    """A query and a key with random contents, and a dial for each pair of their numbers."""
    places = (5, 2)
    query, key = (
        [round(x, 2) for x in row.tolist()]
        for row in torch.randn(2, HEAD_DIM, generator=torch.Generator().manual_seed(3))
    )
    lines = [
        f"query at {q:>5,}, key at {k:>5,}: {score(query, key, (q, k)):.3f}"
        for q, k in (places, (places[0] + 1000, places[1] + 1000), (places[0], places[1] + 1))
    ]
    fallback = in_words("Two places to choose.", "The score of the same two contents:", lines)
    return Piece("rotary", {"query": query, "key": key, "places": places}, fallback)
