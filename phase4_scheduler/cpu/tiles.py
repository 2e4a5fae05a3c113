"""How the weights for `kernels.py` lie in memory: in the order in which they are read.

They are kept in tiles of 64 outputs, [tiles, groups of 32 inputs, 32 inputs x 64 outputs]. Outputs lie side by side: one scale
for each of them is applied to a whole register, and no sum goes across its lanes. A group is one flat row, so that the compiler
sees one place in memory, and need not check whether several overlap. Within it lie parts, one after the other, each [inputs, outputs]
and as large as one pass of the kernel reads: so memory is read in order, and the processor fetches ahead what comes next.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from phase1_tokens_embeddings.weights.ggml_blocks import unpack_nibbles
from phase2_attention_kvcache.quantization.quantized_formats import GROUP, Planes
from phase3_paged_attention.compiled.arrays import stored_bits

TILE = 64
PARTS = {8: (8, 64), 16: (16, 16), 32: (16, 16)}  # by bits of a number: inputs, outputs
# The same everywhere.
NO_SCALE, MIDDLE = np.ones((1, 1, TILE), np.float32), np.full((1, 1, TILE), 8, np.uint8)


class Matrix(NamedTuple):
    """A linear layer as the kernel takes it.

    Attributes:
        weights: float32, bfloat16 as uint16, or int8 [tiles, groups, 32 x 64]; 4 bits as uint32 [tiles, groups, 4 x 64], eight
            inputs of one output in a word, the first in its lowest bits.
        scales: float32 [tiles, groups, 64]; or the same for a whole row, [tiles, 1, 64], or everywhere, [1, 1, 64].
        zeros: uint8 [tiles, groups, 64], the codes that mean 0 (4 bits only); or the same everywhere, [1, 1, 64].
        bias: float32 [out].
    """

    weights: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    bias: np.ndarray


def float_matrix(weight: Tensor, bias: Tensor | None) -> Matrix:
    """Repack a matrix in float32 or bfloat16. weight: [out, in], in a multiple of 32."""
    weights = in_parts(tiled(weight.detach().unflatten(1, (-1, GROUP))))
    return Matrix(stored_bits(weights), NO_SCALE, MIDDLE, bias_of(bias, len(weight)))


def quantized_matrix(kind: str, planes: Planes, bias: Tensor | None) -> Matrix:
    """Repack a quantized matrix. planes: as in `QuantizedWeight`."""
    codes, zeros = planes["codes"], MIDDLE
    if kind in ("int4", "q4_0"):
        codes = tiled(unpack_nibbles(codes).unflatten(1, (-1, GROUP // 8, 8))).to(torch.int32)
        codes = sum(codes[:, :, :, i] << 4 * i for i in range(8)).view(torch.uint32)
        if "zeros" in planes:
            zeros = tiled(planes["zeros"]).numpy()
    else:
        codes = tiled(codes.unflatten(1, (-1, GROUP))).view(torch.int8)
    scales = tiled(planes["scales"].float())
    return Matrix(codes.flatten(2).numpy(), scales.numpy(), zeros, bias_of(bias, len(planes["codes"])))


def tiled(rows: Tensor) -> Tensor:
    """[out, ...] -> [tiles, ..., 64]; the last tile is filled up with zeros."""
    rows = torch.cat((rows, rows.new_zeros(-len(rows) % TILE, *rows.shape[1:])))
    return rows.unflatten(0, (-1, TILE)).movedim(1, -1).contiguous()


def in_parts(tiles: Tensor) -> Tensor:
    """[tiles, groups, 32, 64] -> [tiles, groups, 32 x 64]."""
    depth, width = PARTS[8 * tiles.element_size()]
    return tiles.unflatten(2, (-1, depth)).unflatten(-1, (-1, width)).transpose(3, 4).flatten(2)


def bias_of(bias: Tensor | None, outputs: int) -> np.ndarray:
    return (torch.zeros(outputs) if bias is None else bias.detach().float()).numpy()
