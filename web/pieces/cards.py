"""More than one card: the part that each holds, the bytes that they exchange, and the bubble."""

from typing import Any

from phase1_tokens_embeddings.weights import SHAPES, ModelShape
from phase1_tokens_embeddings.weights.cards import CARDS
from phase1_tokens_embeddings.weights.memory_math import kv_per_token
from web.pieces.piece import Piece, in_words

SHOWN_MODELS = ("llama-3.2-3b", "llama-3-8b", "llama-3-70b")
WIRES = {"NVLink": 450e9, "PCIe": 32e9}  # bytes a second, each way
DELAY = 10e-6  # seconds that a sum over all cards takes at least: an assumption
CONTEXT = 4096


def numbers_of(shape: ModelShape) -> dict[str, Any]:
    """Return the numbers that both ways of sharing depend on, in 16 bit."""
    return {
        "layers": shape.num_layers,
        "kv_heads": shape.num_kv_heads,
        "weights": 2 * shape.num_parameters,
        "vector": 2 * shape.d_model,
        "kv_bytes": kv_per_token(shape),
    }


def tensor_parallel(shape: ModelShape, cards: int, users: int, wire: str) -> dict[str, float]:
    """A decode step in which every card holds a part of every matrix.

    Returns:
        MB that go into all-reduces, two in each layer; MB that a card sends for them in a ring; seconds on the wire;
        seconds of fixed delays; seconds to read a card's part of weights and caches (H100).
    """
    sums = 2 * shape.num_layers if cards > 1 else 0
    summed = sums * users * 2 * shape.d_model
    sent = summed * 2 * (cards - 1) / cards
    read = (2 * shape.num_parameters + kv_per_token(shape) * users * CONTEXT) / cards
    bandwidth = CARDS["h100"].bandwidth_gb_s * 1e9
    return {
        "summed": summed,
        "sent": sent,
        "wire": sent / WIRES[wire],
        "delay": sums * DELAY,
        "read": read / bandwidth,
    }


def bubble(stages: int, micro_batches: int) -> float:
    """Return the share of the time in which a stage of a pipeline is idle."""
    return (stages - 1) / (micro_batches + stages - 1)


def cards_piece() -> Piece:
    """Sliders for cards, users and micro-batches: tensor parallelism, and the same cards in a row."""
    model, users, micro_batches = "llama-3-70b", 32, 4
    data = {
        "models": {name: numbers_of(SHAPES[name]) for name in SHOWN_MODELS},
        "wires": WIRES,
        "delay": DELAY,
        "context": CONTEXT,
        "bandwidth": CARDS["h100"].bandwidth_gb_s * 1e9,
        "memory": CARDS["h100"].memory_bytes,
        "start": {"model": model, "cards": 4, "users": users, "micro_batches": micro_batches},
    }
    lines = [
        f"{'cards':>5}  {'sent by each, MB':>16}  {'reading, ms':>11}  {'wire, ms':>8}  {'bubble of the row':>17}"
    ]
    for n in (1, 2, 4, 8):
        shared = tensor_parallel(SHAPES[model], n, users, "NVLink")
        lines.append(
            f"{n:>5}  {shared['sent'] / 1e6:>16.0f}  {1e3 * shared['read']:>11.1f}  {1e3 * shared['wire']:>8.2f}"
            f"  {bubble(n, micro_batches):>17.0%}"
        )
    step = (
        f"A decode step of {model} for {users} users with {CONTEXT:,} tokens each, on H100 with NVLink; "
        f"and the bubble with {micro_batches} micro-batches:"
    )
    return Piece("cards", data, in_words("Sliders.", step, lines))
