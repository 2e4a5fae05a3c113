"""Layers whose weights stay in few bits in memory, and a model made of them.

A linear layer reads every weight once a step. With few users that reading is what a step waits for, so fewer bits make it
faster, if turning codes into weights costs less than the reading that is saved. Here plain operators do it, a tile of
rows at a time: readable, and right. A fast one for few rows is in the CPU backend (phase 4, `cpu/kernels.py`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from phase2_attention_kvcache.quantization.quantized_formats import FORMATS, Planes, find_method


class QuantizedWeight(nn.Module):
    """A matrix [out, in] in few bits.

    Args:
        kind: a name in FORMATS. planes: what that format stores (see there).
    """

    def __init__(self, kind: str, planes: Planes) -> None:
        super().__init__()
        self.kind, self._names = kind, tuple(planes)
        for name, plane in planes.items():
            self.register_buffer(name, plane.contiguous())
        self.shape = (len(next(iter(planes.values()))), self.rows(slice(0, 1)).shape[1])

    @classmethod
    def of(cls, weight: Tensor, method: str) -> "QuantizedWeight":
        """Quantize a matrix.

        Raises:
            ValueError: an unknown method, rows that do not divide into groups, or weights that are no numbers.
        """
        method = find_method(method)
        group = FORMATS[method].group
        if group and weight.shape[1] % group:
            raise ValueError(
                f"a row of {weight.shape[1]} weights does not divide into groups of {group}: "
                f"{method} cannot be used here, int8 can"
            )
        if not weight.isfinite().all():
            raise ValueError("some weights are NaN or infinite: no scale fits them")
        return cls(method, FORMATS[method].quantize(weight))

    @property
    def planes(self) -> Planes:
        return {name: getattr(self, name) for name in self._names}

    @property
    def nbytes(self) -> int:
        return sum(plane.nbytes for plane in self.planes.values())

    def rows(self, index: slice | Tensor) -> Tensor:
        """Some rows as float32 [rows, in]. `index`: a slice, or row numbers [rows]."""
        return FORMATS[self.kind].dequantize({name: plane[index] for name, plane in self.planes.items()})


class QuantizedLinear(nn.Module):
    """As `nn.Linear`.

    Args:
        parts: matrices with the same `in`, one below the other. (Queries, keys and values are one layer here, and a
            GGUF file may hold them in different types.)
        bias: [out], or None.
    """

    tile = 2**20  # weights that are unpacked at a time

    def __init__(self, parts: Sequence[QuantizedWeight], bias: Tensor | None) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.register_buffer("bias", bias)

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    @property
    def matrix_bytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def forward(self, x: Tensor) -> Tensor:
        """x: [N, in] -> [N, out]."""
        y = beside([self.multiply(x, part) for part in self.parts])
        return y if self.bias is None else y + self.bias

    def multiply(self, x: Tensor, part: QuantizedWeight) -> Tensor:
        """x: [N, in] -> [N, rows of the part]. A backend with a kernel overrides this."""
        rows, width = part.shape
        step = max(1, self.tile // width)
        tiles = (part.rows(slice(start, start + step)) for start in range(0, rows, step))
        return beside([x @ tile.to(x.dtype).t() for tile in tiles])


def beside(pieces: Sequence[Tensor]) -> Tensor:
    """[N, a], [N, b], ... -> [N, a + b + ...]."""
    return torch.cat(pieces, dim=-1) if len(pieces) > 1 else pieces[0]


class QuantizedEmbedding(nn.Module):
    """As `nn.Embedding`: only the rows that are looked up are unpacked."""

    def __init__(self, weight: QuantizedWeight, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight, self.dtype = weight, dtype

    def forward(self, token_ids: Tensor) -> Tensor:
        """token_ids: [N] -> [N, in]."""
        return self.weight.rows(token_ids).to(self.dtype)


def quantize_model(model: nn.Module, method: str, table_method: str | None = None) -> nn.Module:
    """Replace every linear layer and the token table of a `Transformer`, in place. Returns the model.

    The table of positions, norms, biases and a mixture's routers stay as they are: they are few, and delicate.

    Args:
        table_method: of the token table and the head; None: as the rest. Every score comes out of the head, so it is
            often given more bits.

    Raises:
        ValueError: see `QuantizedWeight.of`; the model is not whole then.
    """
    quantize_table(model, table_method or method)
    layers = [
        (module, name, QuantizedLinear([QuantizedWeight.of(child.weight, method)], child.bias))
        for module in model.blocks.modules()
        for name, child in module.named_children()
        if isinstance(child, nn.Linear) and name != "router"
    ]
    for module, name, layer in layers:
        setattr(module, name, layer)
    return model


def quantize_table(model: nn.Module, method: str) -> None:
    """The token table and the head of a `Transformer`, in place; a tied head shares the table."""
    table = QuantizedWeight.of(model.token_table.weight, method)
    head = table if model.config.tied else QuantizedWeight.of(model.head.weight, method)
    model.token_table, model.head = QuantizedEmbedding(table, model.dtype), QuantizedLinear([head], None)


def is_quantized(model: nn.Module) -> bool:
    return any(isinstance(module, QuantizedWeight) for module in model.modules())


def weight_bytes_of(model: nn.Module) -> int:
    """Bytes of all weights of a model in memory, scales included; tensors shared by two layers count once."""
    computed = (model.cos, model.sin, model.local_cos, model.local_sin)  # not stored
    tables = {id(t) for t in computed if t is not None}
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers()) if id(t) not in tables}
    return sum(t.nbytes for t in tensors.values())
