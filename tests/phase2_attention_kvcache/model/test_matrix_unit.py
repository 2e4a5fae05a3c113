"""Products on the processor's matrix unit: equal to their definition, row by row. Where there is none, the tiles go on without."""

import pytest
import torch

pytest.importorskip("numba")

from phase2_attention_kvcache.model import SamplingParams, tiled_linear
from phase2_attention_kvcache.model.matrix_unit import UnitTiles, has_matrix_unit
from phase2_attention_kvcache.model.tiled_gemm import FloatTiles
from phase2_attention_kvcache.model.tiled_linear import TiledLinear, TiledWeight
from phase4_scheduler.engine import LLMEngine

needs_unit = pytest.mark.skipif(not has_matrix_unit(), reason="needs a processor with AMX")


@needs_unit
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 70, 300])
@pytest.mark.parametrize(("inputs", "outputs", "bias"), [(32, 64, False), (576, 130, True)])
def test_product(rows, inputs, outputs, bias):
    """130 outputs: the third tile is not full. 576 inputs: more than one block of them. 300 rows: more than a panel."""
    torch.manual_seed(rows)
    linear = torch.nn.Linear(inputs, outputs, bias=bias).bfloat16()
    x = torch.randn(rows, inputs).bfloat16()
    exact = x.double() @ linear.weight.double().T + (linear.bias.double() if bias else 0)
    tiled = TiledLinear(TiledWeight(linear.weight), linear.bias)
    assert isinstance(tiled.tiles, UnitTiles)
    with torch.inference_mode():
        y = tiled(x)
    assert y.dtype == torch.bfloat16
    assert (y.double() - exact).abs().max() <= exact.abs().max() / 256


@needs_unit
def test_a_row_does_not_depend_on_its_neighbours():
    """Not on how many there are, and not on numbers that broke down among them."""
    torch.manual_seed(0)
    linear, x = (
        TiledLinear(TiledWeight(torch.randn(130, 96).bfloat16()), None),
        torch.randn(37, 96).bfloat16(),
    )
    alone = torch.cat([linear(row[None]) for row in x])
    assert torch.equal(linear(x), alone)
    x[20] = torch.nan
    y = linear(x)
    assert y[20].isnan().all() and torch.equal(y[:20], alone[:20]) and torch.equal(y[21:], alone[21:])


def test_without_one_the_wide_registers_multiply(monkeypatch):
    monkeypatch.setattr(tiled_linear, "has_matrix_unit", lambda: False)
    weight, x = torch.randn(64, 64).bfloat16(), torch.randn(20, 64).bfloat16()
    linear = TiledLinear(TiledWeight(weight), None)
    assert isinstance(linear.tiles, FloatTiles)
    torch.testing.assert_close(linear(x), x @ weight.T, atol=0.1, rtol=0.01)


@needs_unit
def test_what_does_not_suit_it():
    """Rows that are no multiple of what an instruction takes, and numbers of 32 bits, stay with the wide registers."""
    for weight in (torch.randn(64, 48).bfloat16(), torch.randn(64, 64)):
        assert isinstance(TiledLinear(TiledWeight(weight), None).tiles, FloatTiles)


@needs_unit
def test_the_engine_writes_the_same_with_and_without(monkeypatch):
    """The first words; later a tie may fall the other way."""
    greedy = SamplingParams(temperature=0, max_tokens=4)
    prompts = ["Once upon a time there was", "The old woman said to the", "In a great forest"] * 6

    def answers():
        engine = LLMEngine.from_pretrained("tales", dtype="bfloat16", device="cpu")
        kinds = {type(m.tiles) for m in engine.model.modules() if isinstance(m, TiledLinear)}
        return kinds, [output.token_ids for output in engine.generate(prompts, greedy)]

    with_unit = answers()
    monkeypatch.setattr(tiled_linear, "has_matrix_unit", lambda: False)
    without = answers()
    assert (with_unit[0], without[0]) == ({UnitTiles}, {FloatTiles})
    assert with_unit[1] == without[1]
