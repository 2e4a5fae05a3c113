"""The roofline of a card for a batch of any size: the shortest time of a decode step, and its limit."""

from dataclasses import asdict

from labkit.errors import LabError
from phase1_tokens_embeddings.weights import cards
from phase1_tokens_embeddings.weights.model_shapes import SHAPES
from phase4_scheduler.simulator import StepSize
from phase4_scheduler.simulator.cost_model import ComputedCost
from web.pieces.piece import Piece, in_words

SHOWN_MODELS = ("gpt2-xl", "llama-3.2-1b", "llama-3-8b")
SHOWN_CARDS = ("t4", "l4", "rtx4090", "a100-80", "h100", "h200")


def cost_of(model: str, card: str) -> ComputedCost | None:
    """Return the least cost of a step; None if the model does not fit on the card."""
    try:
        return ComputedCost.of(SHAPES[model], cards.CARDS[card])
    except LabError:
        return None


def roofline_piece() -> Piece:
    """Sliders for users and the length of their contexts; the bytes, operations and time of a decode step."""
    model, card, context = "llama-3-8b", "h100", 1024
    costs = {f"{model} {card}": cost_of(model, card) for model in SHOWN_MODELS for card in SHOWN_CARDS}
    data = {
        "models": SHOWN_MODELS,
        "cards": {name: cards.CARDS[name].title for name in SHOWN_CARDS},
        "costs": {pair: asdict(cost) for pair, cost in costs.items() if cost},
        "start": {"model": model, "card": card, "users": 16, "context": context},
    }
    cost = cost_of(model, card)
    lines = [f"{'users':>6}  {'ms a step':>9}  {'tokens/s':>9}"]
    for n in (1, 4, 16, 64, 256):
        seconds = cost.seconds(StepSize.of([(context - 1, 1)] * n))
        lines.append(f"{n:>6}  {1e3 * seconds:>9.2f}  {n / seconds:>9,.0f}")
    what = f"The shortest time of a decode step, {cost.name}, contexts of {context:,} tokens:"
    return Piece("roofline", data, in_words("Sliders.", what, lines))
