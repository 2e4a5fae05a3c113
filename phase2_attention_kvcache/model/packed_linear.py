"""Weights in the order in which the CPU wants to read them.

A matrix product on a CPU works on small tiles. Before the product, oneDNN (the library behind torch's CPU
kernels) rearranges the weights into tiles, and it does so again at every step, though weights never change.
Here they are rearranged once. That makes the linear layers 1.3 to 1.7 times as fast. The engine does so where there is no
compiled product of our own (`tiled_linear.py`).
"""

import torch
from torch import Tensor, nn

from phase2_attention_kvcache.model.transformer import Transformer


class PackedLinear(nn.Module):
    """As `nn.Linear`, with weights packed once. For inference on a CPU.

    Args:
        weight: [out, in]. bias: [out], or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.shape = weight.shape
        self.bias = bias
        # The operators that torch.compile itself uses for this ("freezing" in torch/_inductor). The number
        # is the batch that the order of tiles is chosen for; others work as well.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), 64)

    @property
    def matrix_bytes(self) -> int:
        return self.shape.numel() * self.packed.dtype.itemsize

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


def matrix_bytes(model: Transformer) -> int:
    """Bytes of the matrices that every step multiplies with, as they are in memory. Tables are only looked up."""
    modules = list(model.modules())
    plain = sum(m.weight.nbytes for m in modules if isinstance(m, nn.Linear))
    others = sum(getattr(m, "matrix_bytes", 0) for m in modules)  # our own linear layers say it themselves
    tied = model.token_table.weight.nbytes if model.head is None else 0  # the table is the head as well
    return plain + others + tied


def can_pack(model: Transformer) -> bool:
    """Whether packing works here: 16-bit weights on a CPU whose torch has oneDNN."""
    if (
        model.device.type != "cpu"
        or model.dtype != torch.bfloat16
        or not torch.backends.mkldnn.is_available()
    ):
        return False
    try:
        PackedLinear(torch.zeros(16, 16, dtype=model.dtype), None)(torch.zeros(1, 16, dtype=model.dtype))
    except (RuntimeError, AttributeError, NotImplementedError):  # an older torch, or another processor
        return False
    return True


def pack_linear_layers(model: Transformer) -> Transformer:
    """Replace every linear layer of a model, in place. The unpacked weights are let go.

    A model with tied tables keeps its token table as well, for looking up, so its head takes memory twice.
    """
    if model.config.tied and isinstance(model.token_table, nn.Embedding):
        model.head = PackedLinear(model.token_table.weight, None)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, PackedLinear(child.weight, child.bias))
    return model
