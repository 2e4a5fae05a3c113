"""Change the number of bits, and compare the text and the loss of a model."""

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.measuring.evaluation import bits_per_byte
from phase2_attention_kvcache.model import Transformer, generate_cached
from phase2_attention_kvcache.quantization.quantized_formats import group_grid
from web.pieces.piece import Piece, in_words

BITS = (2, 3, 4, 5, 6, 7, 8)
GROUPS = (32, 128, 0)  # weights that share a scale and a zero point; 0: a whole row
SCALE_AND_ZERO = 16 + 8  # bits of them, as "int4" stores them
SHOWN_WEIGHTS = 32


@dataclass(frozen=True)
class Setting:
    """A model with each weight in `bits` bits.

    Attributes:
        bits_a_weight: scales and zero points included. bits_per_byte: of a text.
        said: what the model writes, token by token. codes: the weights that the codes of the first group stand for.
    """

    bits: int
    group: int
    bits_a_weight: float
    bits_per_byte: float
    said: list[str]
    codes: list[float]


@dataclass(frozen=True)
class FewerBits:
    """A model in full, and in all settings. `weights`: the first ones of a matrix of it."""

    prompt: str
    said: list[str]
    bits_per_byte: float
    weights: list[float]
    settings: list[Setting]

    @classmethod
    @torch.inference_mode()
    def of(
        cls,
        model: Transformer,
        tok: BPETokenizer,
        prompt: str,
        text: Sequence[int],
        num_bytes: int,
        new_tokens: int = 24,
    ) -> "FewerBits":
        """Let a model go on with a prompt, and measure it on a text of `num_bytes` bytes, in every setting."""

        def said_by(a_model: Transformer) -> list[str]:
            ids = generate_cached(a_model, tok.encode(prompt), new_tokens).token_ids
            return [tok.decode([i]) for i in ids]

        matrix = model.blocks[0].mlp.up.weight
        settings = []
        for group in GROUPS:
            for bits in BITS:
                few, cost = in_few_bits(model, bits, group)
                measured = bits_per_byte(few, text, num_bytes)
                codes = levels(matrix[0, : group or None], bits)
                settings.append(Setting(bits, group, cost, measured, said_by(few), codes))
        weights = matrix[0, :SHOWN_WEIGHTS].tolist()
        return cls(prompt, said_by(model), bits_per_byte(model, text, num_bytes), weights, settings)


def in_few_bits(model: Transformer, bits: int, group: int) -> tuple[Transformer, float]:
    """A copy of a model whose matrices are rounded, and the bits that one of their weights takes."""
    few = copy.deepcopy(model)
    matrices = [m.weight for m in few.blocks.modules() if isinstance(m, nn.Linear)] + [few.token_table.weight]
    for weight in matrices:
        weight.copy_(round_to(weight, bits, group))
    scales = sum(weight.numel() / (group or weight.shape[1]) for weight in matrices)
    return few, bits + SCALE_AND_ZERO * scales / sum(weight.numel() for weight in matrices)


def round_to(weight: Tensor, bits: int, group: int) -> Tensor:
    """A matrix [out, in] as it comes back from codes of `bits` bits. The course's "int4" is 4 bits in groups of 32."""
    groups = weight.unflatten(1, (-1, group or weight.shape[1]))
    scales, zeros = group_grid(groups, 2**bits - 1)
    codes = (groups / scales + zeros).round().clamp(0, 2**bits - 1)
    return ((codes - zeros) * scales).flatten(1)


def levels(group: Tensor, bits: int) -> list[float]:
    """The weights that the codes of one group stand for."""
    scale, zero = group_grid(group, 2**bits - 1)
    return ((torch.arange(2**bits) - zero) * scale).tolist()


def bits_piece(run: FewerBits) -> Piece:
    """Two sliders' worth of settings, worked out beforehand: the sentence, the bits per byte, and where codes lie."""
    data = {**asdict(run), "bits": BITS, "groups": GROUPS, "start": {"bits": BITS[-1], "group": GROUPS[-1]}}
    lines = [
        f"{s.bits} bits: {s.bits_per_byte:5.2f} bits per byte  {run.prompt}{''.join(s.said)}".replace(
            "\n", " "
        )
        for s in run.settings
        if s.group == GROUPS[-1]
    ]
    use, scale = "A slider from 2 bits a weight to 8.", "A scale for each row of a matrix:"
    return Piece("bits", data, in_words(use, scale, lines))
