"""The blocks of GGUF files: neighbours in a row share a scale, and are packed into a few bits each.

A weight of a matrix is about as large as its neighbours. So store one scale for 32 of them, and each weight as a
small whole number, its code: weight = code x scale. Four of the many kinds:

    Q8_0   32 weights   [scale: F16] [32 codes of 8 bits]                                  34 bytes   8.5    bits per weight
    Q4_0   32 weights   [scale: F16] [32 codes of 4 bits, from -8 to 7]                    18 bytes   4.5
    Q4_K   256 weights  [scale, minimum: F16] [8 scales, 8 minima of 6 bits] [256 x 4]     144 bytes  4.5
    Q6_K   256 weights  [256 x 4 low bits] [256 x 2 high bits] [16 scales: I8] [scale: F16]  210 bytes  6.5625

Q4_0 spends 16 of its 144 bits on the scale. Q4_K has a minimum besides, so that codes need not be spread around 0,
and still takes no more: its scales of 32 weights are small numbers themselves, with one scale for all 8 ("super-block").

A small worked example, Q4_0. The weight of largest size is -0.8. It gets the code -8, so the scale is 0.1:

    weights   -0.8   0.31   0.04   -0.55
    / 0.1     -8     3.1    0.4    -5.5
    codes     -8     3      0      -5       (rounded, halves up)
    stored    0      11     8      3        (+ 8, so that 4 bits without a sign hold them)
    back      -0.8   0.3    0.0    -0.5

Reading is written out here: a layer whose weights stay packed does it in each step, on any device. Writing is the package
`gguf`'s.

Source: `ggml-common.h` and `ggml-quants.c` of llama.cpp.
"""

import gguf
import numpy as np
import torch
from torch import Tensor

from phase1_tokens_embeddings.weights.weight_formats import BLOCKS

PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
READABLE = (*PLAIN, "Q8_0", "Q4_0", "Q4_K", "Q6_K")
WRITABLE = (*PLAIN, "Q8_0", "Q4_0")


def dequantize_blocks(kind: str, data: Tensor) -> Tensor:
    """The weights of packed rows.

    Args:
        kind: one of READABLE.
        data: uint8 [rows, bytes of a row].

    Returns:
        float32 [rows, weights of a row].

    Raises:
        ValueError: another kind.
    """
    if kind in PLAIN:
        return data.contiguous().view(PLAIN[kind]).float()
    if kind not in READABLE:
        raise ValueError(f"{kind} is not read here: {', '.join(READABLE)} are")
    blocks = data.unflatten(-1, (-1, BLOCKS[kind].nbytes))  # [rows, blocks, bytes of a block]
    unpack = {"Q8_0": _from_q8_0, "Q4_0": _from_q4_0, "Q4_K": _from_q4_k, "Q6_K": _from_q6_k}[kind]
    return unpack(blocks).flatten(-2)


def quantize_blocks(kind: str, weight: Tensor) -> Tensor:
    """Rows of weights, packed by the package `gguf`.

    Args:
        kind: one of WRITABLE.
        weight: float [rows, weights of a row].

    Returns:
        uint8 [rows, bytes of a row].

    Raises:
        ValueError: another kind, rows that do not divide into blocks, or weights that are no numbers.
    """
    if kind not in WRITABLE:
        raise ValueError(f"{kind} is not written here: {', '.join(WRITABLE)} are")
    if weight.shape[-1] % (size := BLOCKS[kind].size):
        raise ValueError(
            f"a row of {weight.shape[-1]} weights does not divide into {kind} blocks of {size}: use F16"
        )
    if kind not in PLAIN and not weight.isfinite().all():
        raise ValueError("some weights are NaN or infinite: no scale fits them")
    packed = gguf.quants.quantize(weight.float().contiguous().cpu().numpy(), gguf.GGMLQuantizationType[kind])
    return torch.from_numpy(packed.view(np.uint8)).to(weight.device)


def scales_of_blocks(kind: str, data: Tensor) -> Tensor:
    """The F16 scales of quantized rows: [rows, blocks, 1 or (Q4_K) 2].

    They show damage first: any bits are valid codes, but not any bits are a valid scale.
    """
    blocks = data.unflatten(-1, (-1, BLOCKS[kind].nbytes))
    first, last = {"Q8_0": (0, 2), "Q4_0": (0, 2), "Q4_K": (0, 4), "Q6_K": (208, 210)}[kind]
    return _as(blocks[..., first:last], torch.float16)


def pack_nibbles(codes: Tensor) -> Tensor:
    """Codes of 4 bits, two to a byte: [..., 32 n] -> uint8 [..., 16 n].

    Byte j of a block holds code j in its low half and code j + 16 in its high half. So one AND with 15 gives a
    processor 16 neighbours at once, and one shift gives it the next 16.
    """
    low, high = codes.to(torch.uint8).unflatten(-1, (-1, 2, 16)).unbind(-2)
    return (low | high << 4).flatten(-2)


def unpack_nibbles(packed: Tensor) -> Tensor:
    """The reverse of `pack_nibbles`: uint8 [..., 16 n] -> uint8 [..., 32 n], from 0 to 15."""
    halves = packed.unflatten(-1, (-1, 16))
    return torch.stack((halves & 15, halves >> 4), dim=-2).flatten(-3)


# ------------------------------------------------------------------ the kinds: blocks [..., bytes] <-> [..., weights]


def _as(part: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes of a block, taken as numbers of another kind."""
    return part.contiguous().view(dtype)


def _from_q8_0(blocks: Tensor) -> Tensor:
    return _as(blocks[..., 2:], torch.int8).float() * _as(blocks[..., :2], torch.float16).float()


def _from_q4_0(blocks: Tensor) -> Tensor:
    return _as(blocks[..., :2], torch.float16).float() * (unpack_nibbles(blocks[..., 2:]).float() - 8)


def _from_q4_k(blocks: Tensor) -> Tensor:
    scale, minimum = _as(blocks[..., :4], torch.float16).float().split(1, dim=-1)
    # Eight scales and eight minima of 6 bits in 12 bytes: four of each lie whole in the low 6 bits of bytes 0-7. Of
    # the other four, bytes 8-11 hold the low 4 bits, and the two bits left over in bytes 0-7 the high ones.
    a, b, c = blocks[..., 4:16].split(4, dim=-1)
    scales = torch.cat((a & 63, c & 15 | a >> 2 & 48), dim=-1)
    minima = torch.cat((b & 63, c >> 4 | b >> 2 & 48), dim=-1)
    # Of 64 weights the first 32 are in the low halves of 32 bytes, the last 32 in the high halves.
    packed = blocks[..., 16:].unflatten(-1, (4, 32))
    codes = torch.stack((packed & 15, packed >> 4), dim=-2).flatten(-3, -2)  # [..., 8, 32]
    steps, floors = (scale * scales)[..., None], (minimum * minima)[..., None]
    return (steps * codes - floors).flatten(-2)


def _from_q6_k(blocks: Tensor) -> Tensor:
    low, high, scales, scale = blocks.split((128, 64, 16, 2), dim=-1)
    # Twice 128 weights: of each 64 bytes of low bits first the low halves, then the high ones; of each 32 bytes of
    # high bits two at a time, from the lowest up.
    low = low.unflatten(-1, (2, 64))
    low = torch.stack((low & 15, low >> 4), dim=-2).flatten(-3)
    high = high.unflatten(-1, (2, 32))
    high = torch.stack([high >> shift & 3 for shift in (0, 2, 4, 6)], dim=-2).flatten(-3)
    codes = (low | high << 4).to(torch.int8) - 32
    steps = _as(scale, torch.float16).float() * _as(scales, torch.int8).float()  # [..., 16]
    return (steps[..., None] * codes.unflatten(-1, (16, 16)).float()).flatten(-2)
