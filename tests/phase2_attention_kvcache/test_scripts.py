"""The scripts of the phase: each runs, keeps its claims and draws its figures, and a mistake gets one line."""

import shutil
from dataclasses import replace

import pytest

from labkit.models import find_model
from phase2_attention_kvcache import (
    attention_lab,
    families_lab,
    kv_cache_lab,
    positions_lab,
    quantization_lab,
    roofline_lab,
    sampling_lab,
    tell_story,
    transformer_lab,
)
from phase2_attention_kvcache.measuring.roofline import hollow
from phase2_attention_kvcache.model import GPT2_124M, Transformer
from phase2_attention_kvcache.story import quantization_story


@pytest.mark.parametrize(
    ("script", "figures", "claims"),
    [
        (attention_lab, ["attention_heads"], {"dogs-weights", "head-split"}),
        (positions_lab, ["positions_scores", "rotary_speeds"], {"rope-relative"}),
        (sampling_lab, ["sampling_knobs"], {"sampling"}),
        (
            families_lab,
            ["families_kv", "trained_without"],
            {
                "families-agree",
                "families-gemma-window",
                "families-experts-hit",
                "rope-learns-faster",
                "gates-win",
            },
        ),
    ],
)
def test_scripts_that_show_one_step(run_script, script, figures, claims):
    assert claims <= set(run_script(script, "--quick", figures=figures)["claims"])


@pytest.mark.proof
def test_quantization(run_script, monkeypatch, tmp_path):
    # GPT-2's weights take long; which model is timed does not matter here.
    monkeypatch.setattr(quantization_story, "GPT2_124M", hollow(quantization_story.GPT2_124M))
    argv = ("--model", "tales-draft", "--quick")
    report = run_script(quantization_lab, *argv, figures=["quantization_quality"])
    claims = report["claims"]
    assert {"fp8-halves", "int8-minimal", "int4-tpot", "free-lunch", "gptq-wins-back"} <= set(claims)
    assert claims["int8-cache"]["measured"] == pytest.approx(128 / 66)
    sizes = {r["name"]: r["bits_a_weight"] for r in report["results"]["results"]}
    assert (
        sizes["16 bits"] == 16
        and 4.5 < sizes["Q4_0, groups of 32"] < 6 < sizes["int8, a scale per row"] < 9.5
    )


def test_heads_of_any_family(run_script, other_model):
    report = run_script(attention_lab, "--quick", "--model", other_model, "--text", "the cat sat on the mat")
    assert report["claims"]["attention-of-a-model"]["holds"]


def test_sampling_with_any_model(run_script, other_model):
    run_script(sampling_lab, "--quick", "--model", other_model, "--prompt", "the cat", "--seed", "7")


def test_transformer(run_script):
    report = run_script(transformer_lab, "--model", "tales-draft", figures=["answer_by_layer"])
    assert report["results"]["largest_logit_difference"] < 1e-4
    assert "layer by layer" in report["out"]


def test_kv_cache(run_script, monkeypatch):
    # As above: what is timed is slim, what is computed of memory is GPT-2's.
    slim, make = replace(hollow(GPT2_124M), max_context=GPT2_124M.max_context), Transformer.random
    monkeypatch.setattr(Transformer, "random", lambda _, *rest: make(slim, *rest))
    claims = run_script(kv_cache_lab, "--model", "tales-draft", "--quick", figures=["kv_speedup"])["claims"]
    assert {"kv-speedup", "ttft-isl", "itl-flat", "kv-per-token-layer"} <= set(claims)
    assert (claims["work-naive"]["verdict"], claims["work-cached"]["verdict"]) == ("reproduced", "corrected")


def test_roofline(run_script):
    report = run_script(roofline_lab, "--model", "tales", "--quick", figures=["roofline"])
    assert {"decode-memory-bound", "prefill-compute-bound"} <= set(report["claims"])
    assert all(p["kind"] == "timing" for p in report["predictions"])


def test_story(run_script):
    out = run_script(tell_story, "--tokens", "20", "--prompt", "The fox")["out"]
    assert "The fox" in out and "TTFT" in out


@pytest.mark.parametrize(
    ("script", "argv", "message"),
    [
        (attention_lab, ["--layer", "99"], "--layer 99 is out of range: this model has layers 0 to"),
        (attention_lab, ["--text", "word " * 80], "use 2 to 32"),
        (sampling_lab, ["--prompt", ""], "--prompt has 0 tokens: use 1 to 960"),
        (transformer_lab, ["--prompt", "word " * 3000], "context"),
        (tell_story, ["--tokens", "0"], "0 is out of range: 1 to"),
        (tell_story, ["--top-p", "0"], "top_p"),
        (tell_story, ["--model", "no-such-model-xyz"], "no-such-model-xyz"),
        (tell_story, ["--model", "{tmp}/bare"], "tokenizer.json"),
        (tell_story, ["--tokens", "5000"], "context"),
    ],
)
def test_a_mistake_gets_one_line(mistake_of, script, argv, message, tmp_path):
    if "{tmp}/bare" in argv:  # a model folder without a tokenizer
        (tmp_path / "bare").mkdir()
        for name in ("config.json", "model.safetensors"):
            shutil.copy(find_model("tales-draft") / name, tmp_path / "bare")
    assert message in mistake_of(script, *(a.format(tmp=tmp_path) for a in argv))
