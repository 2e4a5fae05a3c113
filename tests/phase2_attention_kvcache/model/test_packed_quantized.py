"""Compiled products of quantised weights equal their definition, number by number."""

import numpy as np
import pytest
import torch

from phase2_attention_kvcache.model import Transformer
from phase2_attention_kvcache.model.quantized_linear import QuantizedLinear, QuantizedWeight, quantize_model

pytest.importorskip("numba")

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from phase2_attention_kvcache.model import packed_quantized, quantized_gemm
from phase2_attention_kvcache.model.fused_kernels import Norm, activate_row, norm_row
from phase2_attention_kvcache.model.numba_setup import exp, narrow, stored_bits
from phase2_attention_kvcache.model.packed_quantized import BITS, PackedQuantizedLinear, PackedQuantizedWeight


def packed(weight, kind):
    quantized = QuantizedWeight.of(weight, kind)
    return quantized, PackedQuantizedWeight(quantized.kind, quantized.planes)


def in_8_bits(x):
    """Activations as the kernel takes them: a scale for 32 neighbours."""
    groups = x.double().unflatten(1, (-1, 32))
    scales = groups.abs().amax(-1, keepdim=True) / 127
    return ((groups / scales.clamp(min=1e-30)).round() * scales).flatten(1)


@pytest.mark.parametrize("kind", BITS)
@pytest.mark.parametrize("rows", [1, 3, 4, 9])
def test_product(kind, rows):
    """100 outputs: the second tile is not full. 9 rows: twice four together, and one alone."""
    torch.manual_seed(rows)
    weight, bias, x = torch.randn(100, 96), torch.randn(100), torch.randn(rows, 96)
    x[0, 32:64] = 0  # a group without a scale
    quantized, tiles = packed(weight, kind)
    y = PackedQuantizedLinear(tiles, bias)(x)
    expected = in_8_bits(x) @ quantized.rows(slice(None)).double().t() + bias
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", BITS)
def test_rows(kind):
    """The token table is looked up in the same memory."""
    quantized, tiles = packed(torch.randn(100, 64), kind)
    index = torch.tensor([0, 99, 64, 5, 63])
    assert torch.equal(tiles.rows(index), quantized.rows(index))


def test_one_memory_for_table_and_head():
    model = quantize_model(Transformer.from_pretrained("tales"), "q4_0")
    packed_quantized.pack_quantized_layers(model)
    assert model.head.weight is model.token_table.weight
    assert all(not isinstance(module, QuantizedLinear) for module in model.modules())


def test_other_kinds_stay():
    """fp8 has no kernel; and one layer of two kinds, as files may have them, stays as it is."""
    model = quantize_model(Transformer.from_pretrained("tales"), "fp8")
    mixed = [QuantizedWeight.of(torch.randn(32, 256), kind) for kind in ("int8", "q4_0")]
    model.blocks[0].attention.qkv = QuantizedLinear(mixed, None)
    packed_quantized.pack_quantized_layers(model)
    assert not any(isinstance(module, PackedQuantizedLinear) for module in model.modules())


@pytest.mark.parametrize("features", [{}, {"avxvnni": True}, None], ids=["any", "avxvnni", "this processor"])
@pytest.mark.parametrize("bits", [4, 8])
def test_instructions(features, bits):
    """A tile's whole-number products are exact, with each instruction that this processor has."""
    if features and not quantized_gemm.llvm.get_host_cpu_features().get("avxvnni"):
        pytest.skip("a processor without AVX-VNNI")

    @intrinsic
    def dot_two_rows(typing_context, codes, x, dots):
        def generate(context, builder, signature, args):
            kinds = (codes, x, dots)
            pointers = [context.make_array(k)(context, builder, a).data for k, a in zip(kinds, args)]
            zero, step = ir.Constant(ir.IntType(64), 0), ir.Constant(ir.IntType(64), 32)
            quantized_gemm.emit_dot_tile(builder, pointers, zero, zero, step, 2, bits, features)
            return context.get_dummy_value()

        return types.void(codes, x, dots), generate

    @njit
    def run(codes, x, dots):
        dot_two_rows(codes, x, dots)

    codes = torch.randint(0, 2**bits, (64, 32), dtype=torch.uint8)
    x = torch.randint(-127, 128, (2, 32), dtype=torch.int8)
    codes[0], x[0] = 2**bits - 1, 127  # the largest sum there can be
    dots = np.full(128, -1, np.int32)
    run(quantized_gemm.lay_out_codes(codes, bits).flatten().numpy(), x.flatten().numpy(), dots)
    assert np.array_equal(dots.reshape(2, 64), (x.int() @ codes.int().t()).numpy())


def test_exp():
    x = np.linspace(-86, 88, 2001, dtype=np.float32)
    result = np.array([exp(value) for value in x], np.float64)
    assert np.abs(result / np.exp(x.astype(np.float64)) - 1).max() < 4e-7
    assert exp(np.float32(-1e30)) < 1e-37


def test_narrow_rounds_as_torch_does():
    x = torch.cat((torch.randn(1000), torch.tensor([0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, 1e30, -1e-30])))

    @njit
    def run(x, out):
        for i in range(len(x)):
            out[i] = narrow(x[i], out)

    out = torch.empty(len(x), dtype=torch.bfloat16)
    run(x.numpy(), stored_bits(out).numpy())
    assert torch.equal(out, x.bfloat16())


def test_norms_and_activations():
    x, weight, bias = torch.randn(3, 96) * 3
    y = torch.empty(96)
    norm_row(x.numpy(), Norm(weight.numpy(), bias.numpy(), np.float32(1e-5), True), y.numpy())
    torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (96,), weight, bias))
    norm_row(x.numpy(), Norm(weight.numpy(), np.zeros(96, np.float32), np.float32(1e-5), False), y.numpy())
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (96,), weight, 1e-5))
    activate_row(x.numpy(), False, y.numpy())
    torch.testing.assert_close(y, torch.nn.functional.gelu(x, approximate="tanh"))
    half = torch.empty(48)
    activate_row(x.numpy(), True, half.numpy())
    torch.testing.assert_close(half, torch.nn.functional.silu(x[:48]) * x[48:])


@pytest.mark.parametrize(("outputs", "width"), [(128, 32), (64, 64), (40, 32)])
def test_zero_points_of_small_matrices(outputs, width):
    """One tile, or one group: every row keeps the zero points of its own."""
    weight = (
        torch.rand(outputs, width, generator=torch.Generator().manual_seed(0))
        + torch.arange(outputs)[:, None]
    )
    plain = QuantizedWeight.of(weight, "int4")
    packed = PackedQuantizedWeight("int4", plain.planes)
    assert torch.equal(packed.rows(torch.arange(outputs)), plain.rows(slice(0, outputs)))
    x = torch.rand(2, width)
    y = PackedQuantizedLinear(packed, None)(x)
    assert (y - x @ plain.rows(slice(0, outputs)).T).norm() < 0.02 * y.norm()
