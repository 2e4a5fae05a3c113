"""The CPU backend around a model: the same numbers, the given model as it was, and a learner's own parts untouched."""

import copy
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from labkit.paths import ROOT
from phase2_attention_kvcache.model import ModelConfig, SamplingParams, Transformer
from phase2_attention_kvcache.quantization.quantized_linear import QuantizedLinear, quantize_model
from phase3_paged_attention.paging import PagedKVCache, StepLayout, compiled_kernel
from phase4_scheduler.cpu import backend, choice, linear, prepare, runner
from phase4_scheduler.cpu.blocks import CPUBlocks
from phase4_scheduler.cpu.linear import FEW, CPULinear
from phase4_scheduler.engine import LLMEngine

LLAMA = ModelConfig(
    name="test", family="llama", vocab_size=97, d_model=64, num_layers=3, num_heads=4, num_kv_heads=2,
    head_dim=32, d_ff=96, max_context=256, tied=False, attention_bias=False, mlp_bias=False,
)  # fmt: skip
MIXTRAL = replace(LLAMA, family="mixtral", num_experts=4, experts_per_token=2)


@pytest.fixture(autouse=True)
def short_measurements(monkeypatch):
    monkeypatch.setattr(choice, "ROUNDS", 1)
    monkeypatch.setattr(choice, "SECONDS", 0)
    monkeypatch.setattr(choice, "COLD_BYTES", 0)
    monkeypatch.setattr(backend, "SMALL", 0)


def make_model(family, dtype="float32", method=None):
    if family == "gpt2":
        model = Transformer.from_pretrained("tales", dtype)
    else:
        model = Transformer.random(MIXTRAL if family == "mixtral" else replace(LLAMA, family=family), dtype)
        torch.manual_seed(0)
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):  # else all are 1, and one for another would not be noticed
                weight.data.uniform_(0.5, 1.5)
    return model if method is None else quantize_model(model, method)


def step(model):
    """Vectors of a step with prompts on both sides of a decode, and of one with decodes alone, one of them of two tokens; and what
    the cache, which is full of noise, holds afterwards."""
    torch.manual_seed(0)
    kv = PagedKVCache(model.config, 12, 16, model.dtype)
    kv.storage.data.copy_(torch.randn(kv.storage.data.shape))
    tables, vectors = [[1], [2, 3], [5]], []
    for lens, past, slots in (
        ([2, 1, 3], [0, 16, 0], [16, 17, 48, 80, 81, 82]), ([1, 2, 1], [2, 17, 3], [18, 49, 50, 83]),
    ):  # fmt: skip
        ends = [begin + n for begin, n in zip(past, lens)]
        positions = [place for begin, end in zip(past, ends) for place in range(begin, end)]
        kv.begin_step(StepLayout(lens, ends, tables, torch.tensor(slots)))
        with torch.inference_mode():
            vectors.append(model(torch.tensor([3, 4, 19, 7, 8, 9][: sum(lens)]), torch.tensor(positions), kv))
    return torch.cat(vectors).double(), kv.storage.data.double()


def choose(monkeypatch, few_rows):
    """Our kernel for every number of rows that it is taken for, or for none."""

    def times(name, shape, dtype, ways, copies):
        return {way: [0 if (way == "few rows") == few_rows else 1e6] * len(choice.ROWS) for way in ways}

    monkeypatch.setattr(linear, "measured_times", times)


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "gemma2", "mixtral"])
@pytest.mark.parametrize("method", [None, "int8", "int4", "q8_0", "q4_0"])
@pytest.mark.parametrize("few_rows", [True, False])
def test_the_same_numbers(family, method, few_rows, monkeypatch):
    """Only the last digits differ: sums go in another order.

    The bound: each addition rounds by half a unit in the last place, a sum has up to `d_ff` of them, and layers follow each other.
    """
    choose(monkeypatch, few_rows)
    model = make_model(family, method=method)
    prepared = prepare(model)
    compiled = family != "gemma2" and compiled_kernel() is not None  # gemma2 normalizes in its own way
    assert (type(prepared.blocks) is CPUBlocks) == compiled
    if compiled:
        most = FEW if few_rows and family != "mixtral" else 0  # mixtral's layers have many matrices
        assert {block.most_few_rows for block in prepared.blocks} == {most}
    bound = torch.finfo(torch.float32).eps / 2 * model.config.d_ff * model.config.num_layers
    for ours, theirs in zip(step(prepared), step(model)):
        assert (ours - theirs).norm() < bound * theirs.norm()


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "mixtral"])
@pytest.mark.parametrize("few_rows", [True, False])
def test_as_near_as_the_model(family, few_rows, monkeypatch):
    """In bfloat16: no further from float64 than what the model itself computes, give or take half of it."""
    choose(monkeypatch, few_rows)
    model = make_model(family, "bfloat16")
    exact = copy.deepcopy(model).double()
    for ours, theirs, wanted in zip(step(prepare(model)), step(model), step(exact)):
        assert (ours - wanted).norm() < 1.5 * (theirs - wanted).norm()


@pytest.mark.parametrize("method", [None, "q8_0"])
def test_the_model_is_not_changed(method):
    model = make_model("llama", "bfloat16", method)
    before = {name: (id(part), type(part)) for name, part in model.named_modules()}
    numbers = copy.deepcopy(model.state_dict())
    prepared = prepare(model)
    step(prepared)
    assert prepared is not model
    assert {name: (id(part), type(part)) for name, part in model.named_modules()} == before
    assert all(torch.equal(numbers[name], found) for name, found in model.state_dict().items())
    assert not any(type(part) in (nn.Linear, QuantizedLinear) for part in prepared.modules())
    assert prepared.final_norm is model.final_norm  # what needs no other form is shared


def test_what_stays(monkeypatch):
    """A learner's own layer, number formats that have no other way, a model prepared before, and one of small matrices."""

    class Own(nn.Linear):
        pass

    model = make_model("gpt2", "bfloat16")
    own = model.blocks[0].mlp.up = Own(8, 8, dtype=torch.bfloat16)
    prepared = prepare(model)
    assert prepared.blocks[0].mlp.up is own
    assert type(prepared.blocks[0].attention.qkv) is CPULinear
    monkeypatch.setattr(backend, "SMALL", 1 << 15)
    others = [make_model("llama").double(), make_model("llama").half(), prepare(make_model("gpt2"))]
    for other in [*others, make_model("llama")]:
        assert prepare(other) is other


@pytest.mark.parametrize("method", [None, "int8", "q4_0"])
def test_the_engine_writes_the_same_with_and_without(method, monkeypatch):
    def write():
        engine = LLMEngine.from_pretrained("tales", "float32", "cpu", num_blocks=40, quantization=method)
        params = SamplingParams(temperature=0, max_tokens=12)
        kinds = {type(part) for part in engine.model.modules()}
        return CPULinear in kinds, engine.generate("Once upon a time", params)[0].outputs[0].text

    with_backend, text = write()
    assert with_backend
    monkeypatch.setattr(runner, "prepare", lambda model: model)
    assert write() == (False, text)


SETTINGS = """
import torch
def settings():
    chosen = torch.backends.cuda.cudnn_sdp_enabled(), torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()
    return torch.get_num_threads(), torch.get_default_dtype(), torch.get_rng_state().tolist(), *chosen
before = settings()
from phase4_scheduler.engine import LLMEngine
engine = LLMEngine.from_pretrained("tales", "bfloat16", "cpu", num_blocks=40)
engine.generate("Once")
engine.core.shutdown()  # until then the number of threads follows what other programs leave
assert settings() == before, [(a, b) for a, b in zip(before, settings()) if a != b]
"""


def test_the_settings_of_the_process_stay():
    """Threads, random numbers, the choices of torch's backends: they belong to the program that uses the engine."""
    subprocess.run([sys.executable, "-c", SETTINGS], cwd=ROOT, check=True)
