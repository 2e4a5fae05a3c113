"""The CPU backend's linear layers: every way computes the same numbers, and the table decides which one runs."""

import json
import time

import pytest
import torch
from torch import nn

from labkit import measured
from phase2_attention_kvcache.quantization.quantized_linear import QuantizedLinear, QuantizedWeight
from phase3_paged_attention.paging import compiled_kernel
from phase4_scheduler.cpu import choice
from phase4_scheduler.cpu.choice import ROWS
from phase4_scheduler.cpu.linear import KINDS, CPULinear, float_linear, pack, pack_wide, quantized_linear

needs_numba = pytest.mark.skipif(compiled_kernel() is None, reason="needs numba")
FLOATS = [torch.float32, torch.bfloat16]
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Nothing of these measurements stays on the machine, and they are short."""
    monkeypatch.setattr(choice, "ROUNDS", 1)
    monkeypatch.setattr(choice, "SECONDS", 0)
    monkeypatch.setattr(choice, "COLD_BYTES", 0)
    monkeypatch.setattr(choice, "seconds_of_others", lambda: 0)
    monkeypatch.setenv("INFERENCE_LAB_CACHE", str(tmp_path))
    choice._known.cache_clear()
    yield
    choice._known.cache_clear()


def assert_product(y, x, weight, bias):
    """y = x @ weight.T + bias, as exactly as float32 sums and one rounding to y's number format can be.

    A sum of n products in float32, in any order, is off by at most n 2^-24 times the sum of their sizes (Higham 2002, 3.1).
    """
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    sizes = x.double().abs() @ weight.double().abs().T + (0 if bias is None else bias.double().abs())
    bound = ROUNDING[y.dtype] * exact.abs() + (weight.shape[1] + 4) * ROUNDING[torch.float32] * sizes
    assert ((y.double() - exact).abs() <= bound).all()


def make(outputs, inputs, dtype, bias=True):
    torch.manual_seed(outputs + inputs)
    return nn.Linear(inputs, outputs, bias=bias).to(dtype)


def few_rows(weight, bias):
    from phase4_scheduler.cpu.kernels import multiply_rows
    from phase4_scheduler.cpu.tiles import float_matrix

    matrix = float_matrix(weight, bias)
    return lambda x: multiply_rows(x, matrix)


@pytest.mark.parametrize("way", [pytest.param(few_rows, marks=needs_numba), pack, pack_wide])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 32), (130, 96), (131, 608)])
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_every_way_is_exact(way, dtype, outputs, inputs, bias):
    layer = make(outputs, inputs, dtype, bias)
    run = way(layer.weight, layer.bias)
    if run is None:
        pytest.skip("oneDNN has no such path here")
    for rows in (1, 2, 5, 70):
        x = torch.randn(rows, inputs).to(dtype)
        y = run(x)
        assert y.dtype == dtype
        assert_product(y, x, layer.weight, layer.bias)


@needs_numba
@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("rows", [1, 2, 9])
@torch.inference_mode()
def test_quantized(kind, rows):
    """100 outputs: the second tile is not full. Two parts of one layer; a row and a group of zeros."""
    torch.manual_seed(rows)
    weight = torch.randn(100, 96)
    weight[3], weight[:, 32:64] = 0, 0
    parts = [QuantizedWeight.of(part, kind) for part in weight.split([60, 40])]
    layer, bias = QuantizedLinear(parts, torch.randn(100)), torch.randn(100)
    layer.bias = bias
    x = torch.randn(rows, 96)
    unpacked = torch.cat([part.rows(slice(None)) for part in parts])
    from phase4_scheduler.cpu.kernels import multiply_rows
    from phase4_scheduler.cpu.tiles import quantized_matrix

    planes = {name: torch.cat([part.planes[name] for part in parts]) for name in parts[0].planes}
    assert_product(multiply_rows(x, quantized_matrix(kind, planes, bias)), x, unpacked, bias)
    assert_product(quantized_linear(layer, torch.float32)(x), x, unpacked, bias)


def test_other_kinds_stay():
    """fp8 has no kernel of ours; nor has one layer of two formats, as files may have them."""
    mixed = QuantizedLinear(
        [QuantizedWeight.of(torch.randn(32, 64), kind) for kind in ("int8", "q4_0")], None
    )
    fp8 = QuantizedLinear([QuantizedWeight.of(torch.randn(32, 64), "fp8")], None)
    assert quantized_linear(mixed, torch.float32) is None and quantized_linear(fp8, torch.float32) is None


def test_the_fastest_way_runs():
    """By number of rows; a number between two that were measured counts as the larger. Ours never runs for many rows. What is a
    little faster than the way for fewer rows does not take over."""
    asked = []
    ways = {way: lambda way=way: lambda x: asked.append(way) or x for way in ("torch", "packed", "few rows")}
    times = {
        "torch": [9, 9, 9, 2.9, 1, 2],
        "packed": [5, 5, 5, 3, 4, 1],
        "few rows": [1, 60, 60, 70, 0.5, 0.5],
    }
    layer = CPULinear(ways, times)
    for rows in (1, 2, 4, 5, 16, 17, 64, 65, 300, 0):
        layer(torch.zeros(rows, 2))
    packed, torch_ = ["packed"], ["torch"]
    assert asked == ["few rows"] + 4 * packed + 2 * torch_ + 3 * packed


def test_measured_once(monkeypatch):
    """The second layer of a shape takes the first one's times, in this process and in the next one."""
    calls, real = [], choice.measure
    monkeypatch.setattr(choice, "measure", lambda *args: calls.append(1) or real(*args))
    first = float_linear(torch.randn(64, 32), None)
    float_linear(torch.randn(64, 32), None)
    choice._known.cache_clear()  # as another process would begin
    again = float_linear(torch.randn(64, 32), None)
    assert len(calls) == 1 and again.ways == first.ways
    key, _ = measured.load_measured()
    assert key == choice.file_key("float32", (64, 32))
    assert all(len(row) == len(ROWS) for row in measured.load_measured()[key].values())


def test_times_of_a_busy_machine_hold_for_a_while(monkeypatch):
    calls, real = [], choice.measure
    monkeypatch.setattr(choice, "measure", lambda *args: calls.append(1) or real(*args))
    monkeypatch.setattr(choice, "seconds_of_others", time.perf_counter)  # one core is always taken
    for seconds, wanted in ((0, 1), (0, 1), (choice.BUSY_HOLDS, 2)):
        now = time.time() + seconds
        monkeypatch.setattr(choice.time, "time", lambda now=now: now + 1)
        choice._known.cache_clear()  # as another process would begin
        float_linear(torch.randn(64, 32), None)
        assert len(calls) == wanted


@pytest.mark.parametrize("content", ["no json", "[]", '{"x": 3}', None])
def test_a_broken_file_is_measured_anew(content):
    if content is None:
        content = json.dumps(
            {measured.machine_key(): {choice.file_key("float32", (64, 32)): {"torch": ["fast"]}}}
        )
    measured.measured_file().write_text(content)
    layer = float_linear(torch.randn(64, 32), None)
    assert layer(torch.zeros(3, 32)).shape == (3, 64)
    assert set(layer.ways) == set(ROWS)


def test_no_folder_to_keep_it_in(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INFERENCE_LAB_CACHE", str(tmp_path / "file"))
    assert float_linear(torch.randn(64, 32), None)(torch.zeros(3, 32)).shape == (3, 64)


@pytest.mark.parametrize("dtype", FLOATS)
@torch.inference_mode()
def test_with_the_activation(dtype):
    """Whichever way runs, with one row and with many. GELU's slope is below 1.13, so errors of sums hardly grow."""
    layer, x = make(131, 96, dtype), torch.randn(70, 96).to(dtype)
    found = float_linear(layer.weight, layer.bias, gelu=True)
    sums = x.double() @ layer.weight.double().T + layer.bias.double()
    exact = nn.functional.gelu(sums, approximate="tanh")
    for rows in (1, 70):
        apart = (found(x[:rows]).double() - exact[:rows]).abs()
        assert (apart <= 2 * ROUNDING[dtype] * sums[:rows].abs() + 1e-5).all()


@torch.inference_mode()
def test_a_torch_without_onednn(monkeypatch):
    """Another build, or a shape that it refuses: `F.linear`, and nothing fails."""

    def refuse(*args):
        raise RuntimeError("not compiled")

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", refuse)
    layer, x = make(200, 300, torch.bfloat16), torch.randn(3, 300).bfloat16()
    made = float_linear(layer.weight, layer.bias)
    assert set(made.ways.values()) <= {"torch", "few rows"}
    assert_product(made(x), x, layer.weight, layer.bias)


def test_what_there_is_no_memory_or_no_way_for():
    """No memory for copies; inputs that do not come in groups of 32."""
    assert set(float_linear(torch.randn(256, 256), None, may_copy=False).ways.values()) == {"torch"}
    layer, x = make(20, 33, torch.float32), torch.randn(1, 33)
    made = float_linear(layer.weight, layer.bias)
    assert "few rows" not in made.ways.values()
    assert_product(made(x), x, layer.weight, layer.bias)
