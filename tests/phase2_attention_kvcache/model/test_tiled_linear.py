"""Compiled products of weights in 16 and 32 bits equal their definition, number by number."""

import weakref

import pytest
import torch

from phase2_attention_kvcache.model import ContiguousKVCache, Transformer

pytest.importorskip("numba")

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from phase2_attention_kvcache.model import tiled_gemm, tiled_linear, tiled_product
from phase2_attention_kvcache.model.numba_setup import stored_bits
from phase2_attention_kvcache.model.tiled_linear import TiledLinear, TiledWeight, tile_linear_layers

FORMATS = [(torch.float32, 1e-6), (torch.bfloat16, 1 / 256)]


@pytest.mark.parametrize(("dtype", "digits"), FORMATS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 70, 300])
@pytest.mark.parametrize("inputs", [582, 608, 640])
def test_product(inputs, rows, bias, dtype, digits):
    """130 outputs: the third tile is not full. More than one block of inputs; for a matrix unit (where there is one) 582 are
    too odd, 608 are one stream and 640 two. 70 rows: more than ROWS. 300: more than PANEL."""
    torch.manual_seed(rows)
    linear = torch.nn.Linear(inputs, 130, bias=bias).to(dtype)
    x = torch.randn(rows, inputs).to(dtype)
    exact = x.double() @ linear.weight.double().T + (linear.bias.double() if bias else 0)
    with torch.inference_mode():
        y = TiledLinear(TiledWeight(linear.weight), linear.bias)(x)
    assert y.dtype == dtype
    assert (y.double() - exact).abs().max() <= exact.abs().max() * digits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_does_not_depend_on_its_neighbours(dtype):
    """Sums go in the same order however many rows share a tile, so a request's numbers do not depend on the others'."""
    torch.manual_seed(0)
    linear = TiledLinear(TiledWeight(torch.randn(130, 768).to(dtype)), None)
    x = torch.randn(70, 768).to(dtype)
    assert torch.equal(linear(x), torch.cat([linear(row[None]) for row in x]))


def test_shared_among_threads(monkeypatch):
    """Each thread computes its own tiles, and together they are all."""
    torch.manual_seed(0)
    weight, x = torch.randn(5 * 64 + 3, 96), torch.randn(6, 96)
    linear = TiledLinear(TiledWeight(weight), None)
    out = torch.full((6, len(weight)), float("nan"))
    tiled_product.multiply_shared(x.numpy(), linear.tiles, out.numpy(), 4)
    torch.testing.assert_close(out, x @ weight.T)


def test_old_weights_are_let_go_one_by_one(monkeypatch):
    """While the last layer is laid out, the others are in memory once."""
    model, alive = Transformer.from_pretrained("tales"), []
    old = [weakref.ref(block.mlp.down.weight) for block in model.blocks]

    def lay_out(weight):
        alive.append(sum(weight() is not None for weight in old))
        return TiledWeight(weight)

    monkeypatch.setattr(tiled_linear, "TiledWeight", lay_out)
    tile_linear_layers(model)
    assert alive[0] == len(old) and alive[-1] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("features", [{}, {"avx512f": True}], ids=["any", "avx512f"])
def test_instructions(features, dtype):
    """Two rows' sums for a tile, added to what is there, with registers of 8 and of 16 numbers."""
    pair = 4 // dtype.itemsize

    @intrinsic
    def add_two_rows(typing_context, weights, x, sums):
        def generate(context, builder, signature, args):
            kinds = (weights, x, sums)
            pointers = [context.make_array(k)(context, builder, a).data for k, a in zip(kinds, args)]
            number = ir.IntType(64)
            tiled_gemm.emit_add_dots(
                builder, pointers, [number(0)] * 3, number(10), number(10), 2, pair, features
            )
            return context.get_dummy_value()

        return types.void(weights, x, sums), generate

    @njit
    def run(weights, x, sums):
        add_two_rows(weights, x, sums)

    torch.manual_seed(0)
    weight, x = torch.randn(64, 10).to(dtype), torch.randn(2, 10)
    sums = torch.ones(2, 64)
    tiles = tiled_gemm.lay_out_weights(weight)
    run(stored_bits(tiles).flatten().numpy(), x.flatten().numpy(), sums.view(-1).numpy())
    torch.testing.assert_close(sums, 1 + x @ weight.float().T)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows(dtype):
    """The token table is looked up in the same memory."""
    weight = torch.randn(100, 64).to(dtype)
    index = torch.tensor([0, 99, 64, 5, 63])
    assert torch.equal(TiledWeight(weight).rows(index), weight[index])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_in_tiles(dtype):
    """It computes what the plain one does, and a table that is also the head is in memory once."""
    exact = Transformer.from_pretrained("tales-draft", dtype).double()
    plain = Transformer.from_pretrained("tales-draft", dtype)
    tiled = tile_linear_layers(Transformer.from_pretrained("tales-draft", dtype))
    assert not any(isinstance(module, torch.nn.Linear) for module in tiled.modules())
    assert tiled.head.weight is tiled.token_table.weight
    ids, positions = torch.arange(11) + 300, torch.arange(11)

    def scores(model):
        with torch.inference_mode():
            return model.logits(model(ids, positions, ContiguousKVCache(model.config))).double()

    ours, theirs, expected = scores(tiled), scores(plain), scores(exact)
    assert (ours - expected).norm() < max(1.1 * (theirs - expected).norm(), 1e-6 * expected.norm())


def test_what_stays():
    """A layer of a learner's own, pairs that do not come out even, and numbers that the kernel does not read."""

    class Own(torch.nn.Linear):
        pass

    model = Transformer.from_pretrained("tales-draft", "bfloat16")
    own, odd = Own(8, 8, dtype=torch.bfloat16), torch.nn.Linear(7, 8, dtype=torch.bfloat16)
    model.blocks[0].mlp.up, model.blocks[0].mlp.down = own, odd
    tile_linear_layers(model)
    assert model.blocks[0].mlp.up is own and model.blocks[0].mlp.down is odd
    assert isinstance(model.blocks[0].attention.qkv, TiledLinear)
    assert not tiled_linear.fits(torch.zeros(8, 8, dtype=torch.float16))
