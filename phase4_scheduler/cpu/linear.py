"""A linear layer on a CPU, computed in the way that was measured to be the fastest here for its number of rows.

torch       `F.linear` on the weights as they are; quantized weights are unpacked for it, some rows at a time.
packed      oneDNN, with the weights rearranged once into the order that its kernel reads.
packed32    the same on bfloat16 weights widened to float32: some processors compute in bfloat16 slower than in float32, and
            on others oneDNN has no bfloat16. It reads twice the bytes, so it wins with many rows.
few rows    our own kernel (`few_rows.py`).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phase2_attention_kvcache.quantization.quantized_formats import GROUP
from phase2_attention_kvcache.quantization.quantized_linear import QuantizedLinear
from phase3_paged_attention.paging import compiled_kernel
from phase4_scheduler.cpu.choice import ROWS, Make, Run, Times, measured_times, num_copies

CALL = 20  # microseconds: what a fused block saves for each linear layer in it, in calls of torch from Python
BITS = {"int8": 8, "q8_0": 8, "int4": 4, "q4_0": 4}
"""The quantized formats that our kernel reads."""


class CPULinear(nn.Module):
    """As the linear layer that it was made from.

    Args:
        ways: each makes something that multiplies with this layer's weights.
        times: of each way, see `measured_times`.
        matrix: the layer as our kernel takes it, if it can.

    Attributes:
        ways: by number of rows (a number between two of them counts as the larger), the name of the way.
        most_rows: up to so many rows a fused block computes this layer with our kernel.
    """

    def __init__(self, ways: dict[str, Make], times: Times, matrix: tuple | None) -> None:
        super().__init__()
        best = [min(times, key=lambda way: times[way][i]) for i in range(len(ROWS))]
        self.ways = dict(zip(ROWS, best, strict=True))
        runs = {way: ways[way]() for way in dict.fromkeys(best)}
        self._many = runs[best[-1]]
        self._few: list[Run] = [self._many]  # by number of rows, from 0
        for rows, way in self.ways.items():
            self._few += [runs[way]] * (rows + 1 - len(self._few))
        own = times.get("few rows")
        fits = [n for i, n in enumerate(ROWS) if own and own[i] <= 1.1 * times[best[i]][i] + CALL]
        self.most_rows = max(fits, default=0)
        self.matrix = matrix if self.most_rows else None

    def forward(self, x: Tensor) -> Tensor:
        """x: [N, in] -> [N, out]."""
        n = len(x)
        return (self._few[n] if n < len(self._few) else self._many)(x)


def float_linear(
    weight: Tensor, bias: Tensor | None, may_copy: bool = True, may_widen: bool = True
) -> CPULinear:
    """A linear layer in float32 or bfloat16.

    Args:
        weight: [out, in].
        may_copy: there is memory for a second copy of the weights. may_widen: for one in float32 as well.
    """
    weight = weight.detach().contiguous()
    bias = None if bias is None else bias.detach()
    matrix = None
    if compiled_kernel() is not None:
        from phase4_scheduler.cpu import (
            few_rows,
        )  # numba takes half a second to import: not before it is needed

        matrix = few_rows.float_matrix(weight, bias)

    def ways(weight: Tensor) -> dict[str, Make]:
        found: dict[str, Make] = {"torch": lambda: lambda x: F.linear(x, weight, bias)}
        if matrix is not None:
            here = few_rows.float_matrix(weight, bias)
            found["few rows"] = lambda: lambda x: few_rows.multiply_rows(x, here)
        if may_copy and (pack(weight[:1], bias=None) is not None):
            found["packed"] = lambda: pack(weight, bias)
        if may_widen and weight.dtype == torch.bfloat16 and pack(weight[:1].float(), bias=None) is not None:
            found["packed32"] = lambda: pack_wide(weight, bias)
        return found

    ours = ways(weight)
    times = measured_times(
        str(weight.dtype).removeprefix("torch."),
        weight.shape,
        weight.dtype,
        {way: (lambda way=way: ways(weight.clone())[way]()) for way in ours},
        num_copies(weight.nbytes),
    )
    return CPULinear(ours, times, matrix)


def quantized_linear(layer: QuantizedLinear, dtype: torch.dtype) -> CPULinear | None:
    """A quantized layer. dtype: of the activations. None where our kernel does not read its format."""
    kinds = {part.kind for part in layer.parts}
    outputs, inputs = layer.shape
    if len(kinds) > 1 or not kinds <= BITS.keys() or inputs % GROUP or compiled_kernel() is None:
        return None
    from phase4_scheduler.cpu import few_rows

    [kind] = kinds
    names = layer.parts[0].planes
    planes = {name: torch.cat([part.planes[name] for part in layer.parts]) for name in names}
    matrix = few_rows.quantized_matrix(kind, planes, layer.bias)
    ways: dict[str, Make] = {
        "torch": lambda: layer.forward,
        "few rows": lambda: lambda x: few_rows.multiply_rows(x, matrix),
    }
    return CPULinear(ways, measured_times(kind, (outputs, inputs), dtype, ways, 1), matrix)


def pack(weight: Tensor, bias: Tensor | None) -> Run | None:
    """oneDNN's linear layer with weights rearranged once; None where this torch or processor has none for them."""
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        run = lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")  # noqa: E731
        run(weight.new_zeros(1, weight.shape[1]))
    except (
        RuntimeError,
        AttributeError,
        NotImplementedError,
    ):  # a torch without it, a number format, a shape
        return None
    return run


def pack_wide(weight: Tensor, bias: Tensor | None) -> Run | None:
    """The same for bfloat16, computed in float32."""
    run = pack(weight.float(), None if bias is None else bias.float())
    return run and (lambda x: run(x.float()).to(x.dtype))
