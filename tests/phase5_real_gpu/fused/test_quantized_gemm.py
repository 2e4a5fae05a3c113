"""Products with weights in few bits, in the interpreter: equal to the dequantised matrix, at every edge."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phase2_attention_kvcache.quantization.quantized_formats import FORMATS
from phase2_attention_kvcache.quantization.quantized_linear import QuantizedWeight
from phase5_real_gpu.fused import quantized_gemm
from tests.phase5_real_gpu.conftest import DEVICE, DTYPES
from tests.properties import unshrunk

pytest.importorskip("triton")

KINDS = ("int8", "q8_0", "q4_0", "int4")
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def planes_of(weight: torch.Tensor, kind: str) -> dict[str, torch.Tensor]:
    """A quantized matrix, where the kernels run."""
    return {name: plane.to(DEVICE) for name, plane in QuantizedWeight.of(weight, kind).planes.items()}


@given(
    kind=st.sampled_from(KINDS),
    rows=st.sampled_from([1, 2, 15, 16, 17, 65]),
    outputs=st.sampled_from([1, 31, 32, 65]),
    groups=st.integers(1, 5),
    dtype=st.sampled_from(DTYPES),
)
@settings(unshrunk, max_examples=25)
def test_equals_the_dequantised_matrix(kind, rows, outputs, groups, dtype):
    torch.manual_seed(rows + outputs)
    planes = planes_of(torch.randn(outputs, 32 * groups) + 0.3, kind)
    x = torch.randn(rows, 32 * groups).to(DEVICE, dtype)
    y = quantized_gemm(x, *planes.values())
    expected = x.double() @ FORMATS[kind].dequantize(planes).double().t()
    assert y.dtype == dtype and y.shape == expected.shape
    assert (y.double() - expected).abs().max() <= TOLERANCE[dtype] * expected.abs().max().clamp(min=1)


def test_rows_apart_in_memory():
    """x and codes may be parts of larger tensors."""
    weight = planes_of(torch.randn(40, 64), "q4_0")
    wide = torch.full((40, 64), 255, dtype=torch.uint8, device=DEVICE)
    wide[:, 16:48] = weight["codes"]
    x = torch.full((3, 128), torch.nan, device=DEVICE)
    x[:, :64] = torch.randn(3, 64)
    apart = quantized_gemm(x[:, :64], wide[:, 16:48], weight["scales"])
    assert torch.equal(apart, quantized_gemm(x[:, :64].contiguous(), **weight))


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(x=torch.zeros(2, 96)), "these codes need"),
        (dict(x=torch.zeros(2, 64, dtype=torch.int32)), "use one of float32"),
        (dict(codes=torch.zeros(40, 32)), "rows of int8"),
        (dict(scales=torch.zeros(40, 3)), "scales have shape"),
        (dict(zeros=torch.zeros(40, 1, dtype=torch.uint8)), "zeros go with"),
    ],
)
def test_what_does_not_fit(change, message):
    given = dict(x=torch.zeros(2, 64)) | planes_of(torch.randn(40, 64), "q4_0") | change
    with pytest.raises(ValueError, match=message):
        quantized_gemm(**{name: tensor.to(DEVICE) for name, tensor in given.items()})
