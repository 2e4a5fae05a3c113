"""Quantized layers by torch's operators that unpack weights while they multiply, where this torch has them."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from phase1_tokens_embeddings.weights.ggml_blocks import unpack_nibbles
from phase2_attention_kvcache.model import Transformer
from phase2_attention_kvcache.quantization.quantized_linear import QuantizedLinear


def with_torch_linears(model: Transformer) -> Transformer:
    """Put a `TorchLinear` in the place of each quantized layer whose format torch has an operator for."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, QuantizedLinear) and (layer := TorchLinear.of(child)):
                setattr(parent, name, layer)
    return model


class TorchLinear(nn.Module):
    """A quantized layer by torch's operator that unpacks on the way. Its scales are in bfloat16."""

    def __init__(self, multiply: Callable[[Tensor], Tensor], bias: Tensor | None) -> None:
        super().__init__()
        self.multiply, self.bias = multiply, bias

    @classmethod
    def of(cls, layer: QuantizedLinear) -> Self | None:
        """None for a format or a torch that has no such operator."""
        part = layer.parts[0]
        planes, outputs = part.planes, part.shape[0]
        if part.kind == "int8":
            codes, scales = planes["codes"], planes["scales"][:, 0].bfloat16()
            multiply = lambda x: torch._weight_int8pack_mm(x, codes, scales)  # noqa: E731
        elif part.kind == "int4":
            whole = nn.functional.pad(unpack_nibbles(planes["codes"]), (0, 0, 0, -outputs % 16)).int()
            zeros, scales = planes["zeros"].float(), planes["scales"].float()
            # torch's weight is (code - 8) * scale + zero.
            both = torch.stack((scales, (8 - zeros) * scales), -1).bfloat16()
            both = nn.functional.pad(both, (0, 0, 0, 0, 0, -outputs % 16)).transpose(0, 1).contiguous()
            try:
                packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(whole, 1)
            except (RuntimeError, AttributeError):
                return None
            product = torch.ops.aten._weight_int4pack_mm_for_cpu
            multiply = lambda x: product(x, packed, 32, both)[:, :outputs]  # noqa: E731
        else:
            return None
        try:
            multiply(torch.zeros(1, part.shape[1], dtype=torch.bfloat16))
        except (RuntimeError, AttributeError):
            return None
        return cls(multiply, layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.multiply(x)
        return y if self.bias is None else y + self.bias
