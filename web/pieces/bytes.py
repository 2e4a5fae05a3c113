"""The way of the bytes of one decode step through an H100, operation by operation, to scale in time."""

from dataclasses import asdict, dataclass
from typing import Any

from phase1_tokens_embeddings.weights import SHAPES, ModelShape
from phase1_tokens_embeddings.weights.cards import CARDS
from phase1_tokens_embeddings.weights.memory_math import USABLE, kv_per_token
from phase5_real_gpu.compiling.machine_code import LIMITS
from phase5_real_gpu.measuring.memory_step import numbers_between
from web.pieces.cards import DELAY, WIRES
from web.pieces.piece import Piece, in_words

SHOWN_MODELS = ("gpt2", "gpt2-xl", "llama-3.2-1b", "llama-3.2-3b", "llama-3-8b", "llama-3-70b")
CARD = CARDS["h100"]
L2_BYTES = 50_000_000  # NVIDIA, Hopper tuning guide, section 1.4
PCIE = 64e9  # bytes a second, each way: PCIe 5.0 with 16 lanes
# Shared memory hands out so many bytes from each bank in a clock (CUDA programming guide).
BANKS, BANK_BYTES = 32, 4
OPERATIONS_A_CLOCK = 4096  # of a multiprocessor's tensor cores, dense, 16 bit (NVIDIA, H100 white paper)


@dataclass(frozen=True)
class Operation:
    """A part of a decode step, in numbers of 16 bits.

    Attributes:
        weights: numbers that are read once for all users.
        kv: numbers of keys and values that are read for each token of each user.
        per_user: floating point operations for each user. per_token: for each token of each user.
        sums_up: whether cards that share the model add up their parts behind it (all-reduce).
    """

    name: str
    weights: int = 0
    kv: int = 0
    per_user: int = 0
    per_token: int = 0
    sums_up: bool = False


def operations_of(shape: ModelShape) -> tuple[list[Operation], Operation]:
    """The operations of a layer, in their order, and the LM head. A norm counts with what follows it."""
    sizes: dict[str, int] = {}
    for tensor in shape.tensors():
        if tensor.layer in (None, 0):
            name = tensor.name.removeprefix("blk.0.").split(".")[0]
            sizes[name] = sizes.get(name, 0) + tensor.size

    def product(name: str, norm: str, *tensors: str, sums_up: bool = False) -> Operation:
        entries = sum(sizes.get(t, 0) for t in tensors)
        return Operation(name, entries + sizes.get(norm, 0), per_user=2 * entries, sums_up=sums_up)

    layer = [
        product("q, k, v", "attn_norm", "attn_qkv", "attn_q", "attn_k", "attn_v"),
        Operation(
            "attention",
            kv=2 * shape.num_kv_heads * shape.head_dim,
            per_token=4 * shape.num_heads * shape.head_dim,
        ),
        product("out", "", "attn_output", sums_up=True),
        product("MLP up", "ffn_norm", "ffn_up", "ffn_gate"),
        product("MLP down", "", "ffn_down", sums_up=True),
    ]
    return layer, product("LM head", "output_norm", "token_embd" if shape.tied else "output")


@dataclass(frozen=True)
class Part:
    """An operation on its way: bytes out of a card's HBM, floating point operations, and the seconds that each takes
    at least. wire: seconds of the sum over cards behind it.
    """

    name: str
    bytes: float
    operations: float
    reading: float
    computing: float
    wire: float

    @property
    def seconds(self) -> float:
        """Reading and computing overlap, so the longer of the two counts. Then comes the sum."""
        return max(self.reading, self.computing) + self.wire


def way_of(shape: ModelShape, users: int, context: int, num_cards: int = 1) -> tuple[list[Part], Part, float]:
    """One decode step, from the model's shape and the card's data sheet. Nothing is measured.

    Args:
        context: tokens of each user, the new one included.
        num_cards: H100s that share the model, each a part of every matrix.

    Returns:
        The parts of a layer, the LM head, and the seconds of the whole step.
    """
    sent = users * 2 * shape.d_model * 2 * (num_cards - 1) / num_cards  # bytes, in a ring
    wire = sent / WIRES["NVLink"] + DELAY if num_cards > 1 else 0.0

    def part(o: Operation) -> Part:
        size = 2 * (o.weights + o.kv * users * context) / num_cards
        operations = users * (o.per_user + o.per_token * context) / num_cards
        rates = CARD.bandwidth_gb_s * 1e9, CARD.tensor_tflops * 1e12
        return Part(
            o.name, size, operations, size / rates[0], operations / rates[1], wire if o.sums_up else 0.0
        )

    operations, head = operations_of(shape)
    layer, last = [part(o) for o in operations], part(head)
    return layer, last, shape.num_layers * sum(p.seconds for p in layer) + last.seconds


def numbers_of(shape: ModelShape) -> dict[str, Any]:
    """What the module computes with."""
    layer, head = operations_of(shape)
    return {
        "layers": shape.num_layers,
        "layer": [asdict(o) for o in layer],
        "head": asdict(head),
        "vector": 2 * shape.d_model,
        "between": 2 * 2 * numbers_between(shape),  # bytes that a token's vectors take, written and read
        "weights": 2 * shape.num_parameters,
        "kv": kv_per_token(shape),
        "max_context": shape.max_context,
        "kv_heads": shape.num_kv_heads,
    }


def levels_of_card() -> dict[str, dict[str, float]]:
    """The levels of an H100's memory: bytes, and bytes a second where NVIDIA's documents say them."""
    on_chip = LIMITS[90]
    clock = CARD.tensor_tflops * 1e12 / CARD.multiprocessors / OPERATIONS_A_CLOCK
    return {
        "registers": {"size": CARD.multiprocessors * on_chip.registers * 4},
        "shared memory": {
            "size": CARD.multiprocessors * on_chip.shared_multiprocessor,
            "rate": CARD.multiprocessors * BANKS * BANK_BYTES * clock,
        },
        "L2": {"size": L2_BYTES},
        "HBM": {"size": CARD.memory_bytes, "rate": CARD.bandwidth_gb_s * 1e9},
        "NVLink": {"rate": WIRES["NVLink"]},
        "PCIe": {"rate": PCIE},
    }


def bytes_piece(model: str = "llama-3-8b", users: int = 32, context: int = 4096) -> Piece:
    """Sliders for users, their contexts and cards; a layer and a step drawn as long as they take, and a moment to drag."""
    data = {
        "models": {name: numbers_of(SHAPES[name]) for name in SHOWN_MODELS},
        "levels": levels_of_card(),
        "rate": CARD.tensor_tflops * 1e12,
        "usable": USABLE,
        "delay": DELAY,
        "start": {"model": model, "users": users, "context": context},
    }
    layer, head, seconds = way_of(SHAPES[model], users, context)
    lines = [f"{'':>10}  {'MB out of HBM':>13}  {'reading, us':>11}  {'computing, us':>13}"]
    for part in [*layer, head]:
        lines.append(
            f"{part.name:>10}  {part.bytes / 1e6:>13,.1f}  {1e6 * part.reading:>11.1f}  {1e6 * part.computing:>13.2f}"
        )
    step = (
        f"A decode step of {model} for {users} users with {context:,} tokens each on an H100 takes {1e3 * seconds:.2f} ms at least: "
        f"{SHAPES[model].num_layers} layers, then the LM head. The operations of a layer, and the head:"
    )
    return Piece("bytes", data, in_words("Sliders.", step, lines))
