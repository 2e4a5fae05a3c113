"""Matrices in few bits: how each format makes codes of weights, and weights of codes.

One line is behind all of them:

    weight = (code - zero) x scale

They differ in how many bits a code has, how many weights share a scale, and whether there is a zero point:

    name        codes           a scale for       zero point       bits per weight
    int8        -127 .. 127     a whole row       none             8 + 32 / row
    fp8         E4M3 floats     a whole row       none             8 + 32 / row
    q8_0        -127 .. 127     32 neighbours     none             8.5
    q4_0        0 .. 15         32 neighbours     always 8         4.5
    int4        0 .. 15         32 neighbours     one for each 32  4.75

A row is what makes one output number, so a scale for each row can be taken out of its sum. Where one weight of a row is
far larger than the others (an outlier), it alone decides the scale ("absmax"), and small weights get few codes. Groups
keep that damage within 32 weights. A zero point lets the codes cover the range from the smallest to the largest weight
of the group, wherever it lies; without one they have to reach equally far on both sides of 0.

Here codes and scales lie apart, each kind in a tensor of its own (a "plane"), so that a kernel can read each in wide
steps. GGUF's files have them mixed in blocks (`ggml_blocks.py`): Q8_0 and Q4_0 are taken apart when they are loaded.
Kinds with super-blocks stay as they are.

Sources: compressed-tensors (vllm/model_executor/layers/quantization/compressed_tensors) for W4A16 with zero points;
vllm/config/quantization.py for int8_per_channel_weight_only and fp8_per_channel; Micikevicius et al.,
"FP8 Formats for Deep Learning" (2022), for E4M3.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from phase1_tokens_embeddings.weights.ggml_blocks import (
    dequantize_blocks,
    pack_nibbles,
    quantize_blocks,
    unpack_nibbles,
)

Planes = dict[str, Tensor]
GROUP = 32
# 1 bit of sign, 4 of exponent, 3 of fraction; no infinity; the largest number is 448.
FP8 = torch.float8_e4m3fn
FP8_MAX = torch.finfo(FP8).max


class Format(NamedTuple):
    """A stored matrix. Rows of all planes belong to rows of the matrix.

    Attributes:
        quantize: weights, float [out, in] -> planes. None: only read from files.
        dequantize: planes, or the same rows of each -> float32 [rows, in].
        group: weights that share a scale; 0: a whole row.
    """

    quantize: Callable[[Tensor], Planes] | None
    dequantize: Callable[[Mapping[str, Tensor]], Tensor]
    group: int


# ------------------------------------------------------------------ a scale for each row


def quantize_int8(weight: Tensor) -> Planes:
    """Absmax: the largest weight of a row becomes 127 or -127.

    >>> quantize_int8(torch.tensor([[0.5, -1.27, 0.014]]))["codes"]
    tensor([[  50, -127,    1]], dtype=torch.int8)
    """
    weight = weight.float()
    scales = weight.abs().amax(dim=1, keepdim=True) / 127
    codes = (weight / at_least_tiny(scales)).round().to(torch.int8)
    return {"codes": codes, "scales": scales}


def quantize_fp8(weight: Tensor) -> Planes:
    """The largest weight of a row becomes 448. Codes lie close together near 0 and far apart near the ends."""
    weight = weight.float()
    scales = weight.abs().amax(dim=1, keepdim=True) / FP8_MAX
    return {"codes": (weight / at_least_tiny(scales)).to(FP8), "scales": scales}


def dequantize_rows(planes: Mapping[str, Tensor]) -> Tensor:
    return planes["codes"].float() * planes["scales"]


# ------------------------------------------------------------------ a scale for each group


def quantize_int4(weight: Tensor) -> Planes:
    """The smallest weight of a group becomes 0, the largest 15, and 0.0 is a code of its own: the zero point."""
    groups = weight.float().unflatten(1, (-1, GROUP))  # [out, groups, 32]
    scales, zeros = group_grid(groups)
    codes = (groups / scales + zeros).round().clamp(0, 15)
    return {
        "codes": pack_nibbles(codes.flatten(1)),
        "scales": scales.squeeze(-1).half(),
        "zeros": zeros.squeeze(-1).to(torch.uint8),
    }


def group_grid(groups: Tensor, highest: int = 15) -> tuple[Tensor, Tensor]:
    """Scale and zero point of each group: [..., 32] -> twice [..., 1]. The scales are exact in F16, and never 0.

    Args:
        highest: the largest code; 15 for 4 bits.
    """
    low, high = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True).clamp(min=0)
    scales = ((high - low) / highest).clamp(min=2**-14).half().float()
    return scales, (-low / scales).round().clamp(0, highest)


def dequantize_int4(planes: Mapping[str, Tensor]) -> Tensor:
    groups = unpack_nibbles(planes["codes"]).unflatten(1, (-1, GROUP)).float()
    zeros = planes["zeros"].float()[..., None]
    return ((groups - zeros) * planes["scales"].float()[..., None]).flatten(1)


BLOCK_CODES = {"q8_0": 32, "q4_0": 16}  # bytes of codes in a block of GGUF's that is taken apart here


def split_blocks(kind: str, blocks: Tensor) -> Planes:
    """GGUF's blocks, taken apart: uint8 [out, bytes of a row] -> scales F16 [out, in / 32], and codes: of "q8_0" int8 [out, in], of
    "q4_0" uint8 [out, in / 2], packed as `pack_nibbles` does."""
    size = BLOCK_CODES[kind]
    scales, codes = blocks.unflatten(1, (-1, 2 + size)).split((2, size), dim=-1)
    codes = codes.flatten(1).contiguous()
    return {
        "codes": codes.view(torch.int8) if kind == "q8_0" else codes,
        "scales": scales.flatten(1).contiguous().view(torch.float16),
    }


def dequantize_q8_0(planes: Mapping[str, Tensor]) -> Tensor:
    groups = planes["codes"].unflatten(1, (-1, GROUP)).float()
    return (groups * planes["scales"].float()[..., None]).flatten(1)


def dequantize_q4_0(planes: Mapping[str, Tensor]) -> Tensor:
    groups = unpack_nibbles(planes["codes"]).unflatten(1, (-1, GROUP)).float() - 8
    return (groups * planes["scales"].float()[..., None]).flatten(1)


def at_least_tiny(scales: Tensor) -> Tensor:
    """Scales to divide by: a row of zeros has the scale 0, and 0 / 0 would be NaN."""
    return scales.clamp(min=torch.finfo(torch.float32).tiny)


def _blocks_of(kind: str) -> Format:
    """A kind of GGUF file that is kept as it is, in blocks."""
    return Format(None, lambda planes: dequantize_blocks(kind, planes["blocks"]), group=1)


FORMATS: dict[str, Format] = {
    "int8": Format(quantize_int8, dequantize_rows, 0),
    "fp8": Format(quantize_fp8, dequantize_rows, 0),
    "q8_0": Format(lambda w: split_blocks("q8_0", quantize_blocks("Q8_0", w)), dequantize_q8_0, GROUP),
    "q4_0": Format(lambda w: split_blocks("q4_0", quantize_blocks("Q4_0", w)), dequantize_q4_0, GROUP),
    "int4": Format(quantize_int4, dequantize_int4, GROUP),
    **{kind: _blocks_of(kind) for kind in ("F32", "F16", "BF16", "Q4_K", "Q6_K")},
}
"""By name. The lower-case ones are made from weights; the others come from GGUF files."""

METHODS = tuple(name for name, made in FORMATS.items() if made.quantize)
ALIASES = {"int8_per_channel_weight_only": "int8", "fp8_per_channel": "fp8"}  # vLLM's names for the same


def find_method(name: str) -> str:
    """The short name of a way to quantize.

    Raises:
        ValueError: unknown.
    """
    short = ALIASES.get(name, name)
    if short not in METHODS:
        raise ValueError(f"unknown quantization {name!r}: use {', '.join((*METHODS, *ALIASES))}")
    return short
