"""A linear layer on a CPU, computed in the way that was measured to be the fastest here for its number of rows.

torch       `F.linear` on the weights as they are; quantized weights are unpacked for it, some rows at a time.
packed      oneDNN, with the weights rearranged once into the order that its kernel reads; of quantized weights an unpacked copy.
packed32    the same on bfloat16 weights widened to float32: some processors compute in bfloat16 slower than in float32, and
            on others oneDNN has no bfloat16. It reads twice the bytes, so it wins with many rows.
few rows    our own kernel (`kernels.py`).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phase2_attention_kvcache.quantization.quantized_formats import GROUP
from phase2_attention_kvcache.quantization.quantized_linear import QuantizedLinear
from phase3_paged_attention.paging import compiled_kernel
from phase4_scheduler.cpu import tiles
from phase4_scheduler.cpu.choice import ROWS, Make, Run, Times, measured_times, num_copies
from phase4_scheduler.cpu.large_pages import collapse_pages

FEW = 16  # rows: the most that our kernel is taken for, whatever was measured on a machine with other work to do
CLEARLY = 1.05  # faster is a way that takes over from the one for fewer rows: else chance would choose, and a number between decides
KINDS = {"int8", "q8_0", "int4", "q4_0"}  # the quantized formats that our kernel reads


class FewRows:
    """Our kernel with a matrix."""

    def __init__(self, matrix: tiles.Matrix, gelu: bool = False) -> None:
        from phase4_scheduler.cpu.kernels import multiply_rows  # numba takes half a second to import

        collapse_pages(matrix.weights.ctypes.data, matrix.weights.nbytes)
        self.matrix, self.gelu, self.multiply = tuple(matrix), gelu, multiply_rows

    def __call__(self, x: Tensor) -> Tensor:
        out = self.multiply(x, self.matrix)
        return F.gelu(out, approximate="tanh") if self.gelu else out


class CPULinear(nn.Module):
    """As the linear layer that it was made from.

    Args:
        ways: each makes something that multiplies with this layer's weights.
        times: of each way, see `measured_times`.

    Attributes:
        ways: by number of rows (a number between two of them counts as the larger), the name of the way.
        times: as given. few_rows: returns our kernel with the weights, if it is one of the ways.
    """

    def __init__(self, ways: dict[str, Make], times: Times) -> None:
        super().__init__()
        self.ways = {}
        way = None
        for i, rows in enumerate(ROWS):
            known = {way: times[way][i] for way in times if rows <= FEW or way != "few rows"}
            best = min(known, key=known.get)
            if known.get(way, float("inf")) > CLEARLY * known[best]:
                way = best
            self.ways[rows] = way
        runs = {way: ways[way]() for way in dict.fromkeys(self.ways.values())}
        self._many = runs[self.ways[ROWS[-1]]]
        self._few: list[Run] = [self._many]  # by number of rows, from 0
        for rows, way in self.ways.items():
            self._few += [runs[way]] * (rows + 1 - len(self._few))
        self.times = times
        # A layer may take our kernel for the sake of what lies between the matrix multiplications, see `SAVED` in `backend.py`.
        self.few_rows = lambda: runs.get("few rows") or ways["few rows"]()

    def forward(self, x: Tensor) -> Tensor:
        """x: [N, in] -> [N, out]."""
        n = len(x)
        return (self._few[n] if n < len(self._few) else self._many)(x)


def float_linear(
    weight: Tensor, bias: Tensor | None, may_copy: bool = True, may_widen: bool = True, gelu: bool = False
) -> CPULinear:
    """A linear layer in float32 or bfloat16.

    Args:
        weight: [out, in].
        may_copy: there is memory for two copies of the weights. may_widen: for one in float32 as well.
        gelu: of the result, in its tanh form. oneDNN applies it to sums that are still in registers.
    """
    weight = weight.detach().contiguous()
    bias = None if bias is None else bias.detach()

    def on(matrix: Tensor) -> Run:
        run = lambda x: F.linear(x, matrix, bias)  # noqa: E731
        return with_gelu(run) if gelu else run

    ways: dict[str, Make] = {"torch": lambda: on(weight)}
    if may_copy and weight.shape[1] % GROUP == 0 and compiled_kernel() is not None:
        ways["few rows"] = lambda: FewRows(tiles.float_matrix(weight, bias), gelu)
    if may_copy and pack(weight[:1], bias=None) is not None:
        ways["packed"] = lambda: pack(weight, bias, gelu)
    if may_widen and weight.dtype == torch.bfloat16 and pack(weight[:1].float(), bias=None) is not None:
        ways["packed32"] = lambda: pack_wide(weight, bias, gelu)

    name, measured = str(weight.dtype).removeprefix("torch."), ways | {"torch": lambda: on(weight.clone())}
    times = measured_times(name, weight.shape, weight.dtype, measured, num_copies(weight.nbytes))
    return CPULinear(ways, times)


def quantized_linear(
    layer: QuantizedLinear, dtype: torch.dtype, may_copy: bool = True, gelu: bool = False
) -> CPULinear | None:
    """A quantized layer. None where our kernel does not read its format. dtype: of the activations. may_copy: there is memory for
    the weights in it: for many rows oneDNN on a copy is several times as fast as unpacking in each step. gelu: as above.
    """
    kinds = {part.kind for part in layer.parts}
    if len(kinds) > 1 or not kinds <= KINDS or layer.shape[1] % GROUP or compiled_kernel() is None:
        return None
    [kind] = kinds
    names = layer.parts[0].planes
    planes = {name: torch.cat([part.planes[name] for part in layer.parts]) for name in names}
    bias = None if layer.bias is None else layer.bias.to(dtype)
    few_rows = lambda: FewRows(tiles.quantized_matrix(kind, planes, layer.bias), gelu)  # noqa: E731
    ways: dict[str, Make] = {"few rows": few_rows}
    if may_copy and pack(torch.zeros(1, layer.shape[1], dtype=dtype), bias=None) is not None:
        ways["packed"] = lambda: pack(
            torch.cat([part.rows(slice(None)) for part in layer.parts]).to(dtype), bias, gelu
        )
    else:
        ways["torch"] = lambda: with_gelu(layer.forward) if gelu else layer.forward
    name = f"{kind} for {str(dtype).removeprefix('torch.')}"
    copies = num_copies(layer.matrix_bytes) if "packed" in ways else 1
    return CPULinear(ways, measured_times(name, layer.shape, dtype, ways, copies))


def with_gelu(run: Run) -> Run:
    return lambda x: F.gelu(run(x), approximate="tanh")


def pack(weight: Tensor, bias: Tensor | None, gelu: bool = False) -> Run | None:
    """oneDNN's linear layer with weights rearranged once; None where this torch or processor has none for them."""
    after = ("gelu", [], "tanh") if gelu else ("none", [], "")
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        collapse_pages(torch.ops.mkldnn.data_ptr(packed), torch.ops.mkldnn._nbytes(packed))
        run = lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, *after)  # noqa: E731
        run(weight.new_zeros(1, weight.shape[1]))
    except (RuntimeError, AttributeError):  # a torch without it, a number format, a shape
        return None
    return run


def pack_wide(weight: Tensor, bias: Tensor | None, gelu: bool = False) -> Run | None:
    """The same for bfloat16, computed in float32."""
    run = pack(weight.float(), None if bias is None else bias.float(), gelu)
    return run and (lambda x: run(x.float()).to(x.dtype))
