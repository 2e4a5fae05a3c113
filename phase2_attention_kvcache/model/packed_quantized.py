"""Quantised layers in the order in which the compiled kernel reads them (see `quantized_gemm.py`)."""

import torch
from torch import Tensor, nn

from phase1_tokens_embeddings.weights.ggml_blocks import unpack_nibbles
from phase2_attention_kvcache.model.numba_setup import stored_bits, use_threads_of_torch
from phase2_attention_kvcache.model.quantized_formats import Planes
from phase2_attention_kvcache.model.quantized_gemm import (
    GROUP,
    TILE,
    Tiles,
    fill_tiles,
    lay_out_codes,
    lay_out_scales,
    rows_of_codes,
    rows_of_scales,
)
from phase2_attention_kvcache.model.quantized_linear import (
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedWeight,
)
from phase2_attention_kvcache.model.tiled_linear import replace_layers
from phase2_attention_kvcache.model.tiled_product import product
from phase2_attention_kvcache.model.transformer import Transformer

BITS = {"int8": 8, "q8_0": 8, "int4": 4, "q4_0": 4}
"""The kinds that the kernel reads. Codes have no sign there, so 128 is added to those of 8 bits."""


class PackedQuantizedWeight(nn.Module):
    """A matrix [out, in] in few bits, laid out in tiles.

    Args:
        kind: one of BITS. planes: as in `QuantizedWeight`.
    """

    def __init__(self, kind: str, planes: Planes) -> None:
        super().__init__()
        self.kind, self.num_bits = kind, BITS[kind]
        codes = planes["codes"]
        codes = unpack_nibbles(codes) if self.num_bits == 4 else codes.view(torch.uint8) ^ 128
        zero = 1 << (self.num_bits - 1)
        self.shape = tuple(codes.shape)
        self.register_buffer("codes", lay_out_codes(codes, self.num_bits))
        self.register_buffer("scales", lay_out_scales(planes["scales"]))
        everywhere = torch.full((1, 1, TILE), zero, dtype=torch.uint8)
        self.same_zero = "zeros" not in planes
        self.register_buffer("zeros", lay_out_scales(planes["zeros"]) if "zeros" in planes else everywhere)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.buffers())

    def rows(self, index: Tensor) -> Tensor:
        """Some rows as float32 [rows, in]. `index`: row numbers [rows]."""
        codes = rows_of_codes(self.codes, self.num_bits, index).unflatten(1, (-1, GROUP)).float()
        zeros = self.zeros[:, :, :1] if self.same_zero else rows_of_scales(self.zeros, index)
        zeros, scales = zeros.reshape(-1, zeros.shape[1], 1), rows_of_scales(self.scales, index)[..., None]
        return ((codes - zeros) * scales.float()).flatten(1)

    def move(self, tiles: Tiles) -> None:
        """From now on, use this copy of the same numbers."""
        self.codes, self.zeros = torch.from_numpy(tiles.codes), torch.from_numpy(tiles.zeros)
        self.scales = torch.from_numpy(tiles.scales).view(self.scales.dtype)

    def tiles(self, bias: Tensor | None) -> Tiles:
        """The same memory as the kernel takes it."""
        bias = torch.zeros(self.shape[0]) if bias is None else bias.detach().float()
        arrays = (self.codes, stored_bits(self.scales), self.zeros, fill_tiles(bias))
        return Tiles(*(t.numpy() for t in arrays))


class PackedQuantizedLinear(nn.Module):
    """As `QuantizedLinear`, fast on a CPU.

    Args:
        weight: [out, in]. bias: [out], or None.
    """

    def __init__(self, weight: PackedQuantizedWeight, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = weight
        self.tiles = weight.tiles(bias)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weight.shape

    @property
    def matrix_bytes(self) -> int:
        return self.weight.nbytes

    def move(self, tiles: Tiles) -> None:
        """From now on, use this copy of the same numbers."""
        self.weight.move(tiles)
        self.tiles = tiles

    def forward(self, x: Tensor) -> Tensor:
        """x: [N, in] -> [N, out]."""
        y = torch.empty(len(x), self.shape[0])
        product(x.float().numpy(), self.tiles, y.numpy(), torch.get_num_threads())
        return y.to(x.dtype)


def pack_quantized_layers(model: Transformer) -> Transformer:
    """Lay out every quantised layer of a model anew, in place, where the kernel reads its kind. Returns the model.

    A table of tokens that is also the head stays one in memory.
    """
    use_threads_of_torch()
    table, head = model.token_table, model.head
    if isinstance(table, QuantizedEmbedding) and (weight := pack([table.weight])):
        if isinstance(head, QuantizedLinear) and list(head.parts) == [table.weight]:
            model.head = PackedQuantizedLinear(weight, head.bias)
        table.weight = weight

    def packed(layer: nn.Module) -> PackedQuantizedLinear | None:
        weight = pack(list(layer.parts)) if isinstance(layer, QuantizedLinear) else None
        return weight and PackedQuantizedLinear(weight, layer.bias)

    replace_layers(model, packed)
    return model


def pack(parts: list[QuantizedWeight]) -> PackedQuantizedWeight | None:
    """One matrix of parts that lie one below the other; None where the kernel does not read their kind."""
    kinds = {part.kind for part in parts}
    if len(kinds) > 1 or not kinds <= BITS.keys() or parts[0].shape[1] % GROUP:
        return None
    planes = {name: torch.cat([part.planes[name] for part in parts]) for name in parts[0].planes}
    return PackedQuantizedWeight(parts[0].kind, planes)
