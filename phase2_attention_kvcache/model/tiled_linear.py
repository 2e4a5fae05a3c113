"""Layers in 16 or 32 bits in the order in which the compiled kernel reads them (see `tiled_gemm.py`)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from phase2_attention_kvcache.model.large_pages import empty_in_large_pages
from phase2_attention_kvcache.model.matrix_unit import INPUTS, UnitTiles, has_matrix_unit, missing_rows
from phase2_attention_kvcache.model.numba_setup import stored_bits, use_threads_of_torch
from phase2_attention_kvcache.model.quantized_gemm import fill_tiles
from phase2_attention_kvcache.model.tiled_gemm import (
    FloatTiles,
    lay_out_weights,
    rows_of_weights,
)
from phase2_attention_kvcache.model.tiled_product import product
from phase2_attention_kvcache.model.transformer import Transformer


class TiledWeight(nn.Module):
    """A matrix [out, in], laid out in tiles.

    Args:
        weight: float32; or bfloat16, with an even number of inputs.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.shape = weight.shape
        tiles = lay_out_weights(weight.detach())
        self.register_buffer("tiles", empty_in_large_pages(tiles.shape, tiles.dtype).copy_(tiles))

    def rows(self, index: Tensor) -> Tensor:
        """Some rows [rows, in]. `index`: row numbers [rows]."""
        return rows_of_weights(self.tiles, index)


class TiledLinear(nn.Module):
    """As `nn.Linear`, fast on a CPU.

    Args:
        weight: [out, in]. bias: [out], or None.
    """

    def __init__(self, weight: TiledWeight, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = weight
        bias = torch.zeros(weight.shape[0]) if bias is None else bias.detach().float()
        suits = weight.tiles.dtype == torch.bfloat16 and weight.shape[1] % INPUTS == 0
        kind = UnitTiles if suits and has_matrix_unit() else FloatTiles
        self.tiles = kind(stored_bits(weight.tiles).numpy(), fill_tiles(bias).numpy())

    @property
    def shape(self) -> torch.Size:
        return self.weight.shape

    @property
    def matrix_bytes(self) -> int:
        return self.weight.tiles.nbytes

    def move(self, tiles: FloatTiles | UnitTiles) -> None:
        """From now on, use this copy of the same numbers."""
        self.weight.tiles = torch.from_numpy(tiles.weights).view(self.weight.tiles.dtype)
        self.tiles = tiles

    def forward(self, x: Tensor) -> Tensor:
        """x: [N, in] -> [N, out]."""
        y = torch.empty(len(x), self.shape[0], dtype=x.dtype)
        if isinstance(self.tiles, UnitTiles):
            inputs = x.bfloat16()
            if missing := missing_rows(len(x)):
                inputs = nn.functional.pad(inputs, (0, 0, 0, missing))
        else:
            inputs = x.float()
        product(
            stored_bits(inputs.contiguous()).numpy(),
            self.tiles,
            stored_bits(y).numpy(),
            torch.get_num_threads(),
        )
        return y


class TiledEmbedding(nn.Module):
    """As `nn.Embedding`, from the memory of the head."""

    def __init__(self, weight: TiledWeight) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, token_ids: Tensor) -> Tensor:
        """token_ids: [N] -> [N, in]."""
        return self.weight.rows(token_ids)


def tile_linear_layers(model: Transformer) -> Transformer:
    """Lay out every linear layer of a model anew, in place, where the kernel reads its numbers. Returns the model.

    A table of tokens that is also the head stays one in memory. A subclass of `nn.Linear` stays as it is: it may
    multiply in its own way.
    """
    use_threads_of_torch()
    if model.config.tied and type(model.token_table) is nn.Embedding and fits(model.token_table.weight):
        table = TiledWeight(model.token_table.weight)
        model.token_table, model.head = TiledEmbedding(table), TiledLinear(table, None)

    def tiled(layer: nn.Module) -> TiledLinear | None:
        plain = type(layer) is nn.Linear and fits(layer.weight)
        return TiledLinear(TiledWeight(layer.weight), layer.bias) if plain else None

    replace_layers(model, tiled)
    return model


def replace_layers(module: nn.Module, new: Callable[[nn.Module], nn.Module | None]) -> None:
    """Put `new(layer)` in the place of every layer in a module, at any depth, for which there is one.

    One after the other: the weights of what is replaced are let go before the next one's are laid out.
    """
    for name, _ in list(module.named_children()):
        layer = new(getattr(module, name))
        if layer is None:
            replace_layers(getattr(module, name), new)
        else:
            setattr(module, name, layer)


def fits(weight: Tensor) -> bool:
    """Whether the kernel reads such a matrix."""
    wide = weight.dtype == torch.float32
    return weight.device.type == "cpu" and (
        wide or (weight.dtype == torch.bfloat16 and weight.shape[1] % 2 == 0)
    )
