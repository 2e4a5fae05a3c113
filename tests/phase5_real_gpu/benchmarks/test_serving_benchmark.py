"""The serving benchmark's workloads, models and ratios."""

import os
from dataclasses import replace

import pytest

from phase1_tokens_embeddings.weights import SHAPES, read_shape
from phase2_attention_kvcache.model import Transformer
from phase5_real_gpu.benchmarks import serving_benchmark
from phase5_real_gpu.measuring.engine_peers import random_transformers

LLAMA_CPP = os.environ.get("LLAMA_CPP_PYTHON")


def test_workloads_have_the_sizes_they_promise():
    workloads = serving_benchmark.WORKLOADS
    assert [len(workloads[n]()) for n in ("batch1", "batch4", "batch16", "batch64")] == [1, 4, 16, 64]
    assert all(16 <= len(p) <= 256 and 16 <= osl <= 256 for p, osl in workloads["mixed64"]())
    heads = {tuple(prompt[:256]) for prompt, _ in workloads["prefix64"]()}
    assert len(heads) == 1


@pytest.mark.parametrize("name", ["gpt2", "qwen3-0.6b"])
def test_random_models_have_the_shape_that_is_asked_for(tmp_path, name):
    smaller = replace(SHAPES[name], vocab_size=60, d_model=24, num_layers=2, num_heads=3, head_dim=8, d_ff=96)
    shape = replace(smaller, num_kv_heads=smaller.num_heads if name == "gpt2" else 1)
    random_transformers(shape, "bfloat16", "cpu").save_pretrained(tmp_path)
    found = read_shape(tmp_path / "config.json", name)
    assert found == replace(shape, source="")
    assert Transformer.from_pretrained(tmp_path).config.num_parameters == shape.num_parameters


def test_ratios_compare_equal_bits():
    formats = {"ours": "F16", "ours q8_0": "Q8_0", "llama.cpp Q8_0": "Q8_0"}
    times = {"ours": [4.0, 6.0], "ours q8_0": [2.0, 2.0], "llama.cpp Q8_0": [3.0, 1.0]}
    assert serving_benchmark.ratios({"batch1": times}, formats) == {
        "batch1": {"ours q8_0 / llama.cpp Q8_0": [1.5, 0.5], "ours q8_0 / ours": [2.0, 3.0]}
    }


@pytest.mark.proof
def test_a_short_race(run_script):
    arguments = ["--rounds", "1", "--workloads", "batch1", "--quantized", "q4_0"]
    peer = ["--llamacpp-python", LLAMA_CPP] if LLAMA_CPP else []
    found = run_script(serving_benchmark, *arguments, *peer)["results"]["ratios"]["batch1"]
    assert "ours q4_0 / ours" in found and ("ours q4_0 / llama.cpp Q4_0" in found) == bool(peer)
