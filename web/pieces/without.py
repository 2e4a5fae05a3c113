"""Remove one choice: what small models came to that were trained without it."""

import json

from phase2_attention_kvcache.story.trained_without import ALL, RESULT, Trained, read_trained
from web.pieces.piece import Piece, in_words


def numbers_of(trained: Trained) -> dict:
    return {
        "name": trained.name,
        "parameters": trained.parameters,
        "perplexities": [round(p, 3) for p in trained.perplexities],
        "losses": [round(loss, 3) for loss in trained.losses],
    }


def without_piece() -> Piece:
    """A button for each choice; the perplexity of each seed, and how the loss fell."""
    recipes = [numbers_of(trained) for trained in read_trained().values()]
    lines = [f"{'in its place':32}  {'parameters':>10}  perplexity, by seed"]
    for r in recipes:
        lines.append(
            f"{r['name']:32}  {r['parameters']:>10,}  {'  '.join(f'{p:.1f}' for p in r['perplexities'])}"
        )
    what = "A small model trained with all choices, and without each:"
    how = json.loads(RESULT.read_text(encoding="utf-8"))
    data = {"recipes": recipes, "all": ALL, "tokens_per_loss": 10 * how["tokens_per_step"]}
    return Piece("without", data, in_words("Buttons.", what, lines))
