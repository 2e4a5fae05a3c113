"""The scripts of the phase: their claims hold, they take any model, and a mistake gets one line."""

import shutil

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config

from labkit.models import find_model
from phase1_tokens_embeddings import embedding_explorer, gpu_memory_equation, model_file_anatomy
from phase1_tokens_embeddings.weights.gguf_writer import write_gguf, write_out


@pytest.fixture
def run(run_script):
    """Run a script with one figure, which has its name."""
    return lambda script, *argv: run_script(
        script, "--quick", *argv, figures=[script.__name__.split(".")[-1]]
    )


@pytest.mark.parametrize(
    ("script", "verdicts"),
    [
        (embedding_explorer, {"king-queen": "needs a download", "input-matrix-checkpoint": "reproduced"}),
        (model_file_anatomy, {"llama32-3b-layers": "corrected", "7b-by-precision": "reproduced", "file-layout": "reproduced"}),
        (gpu_memory_equation, {"llama8b-fp16": "corrected", "embedding-256mb": "reproduced", "kv-per-token": "reproduced"}),
    ],
)  # fmt: skip
def test_a_script_checks_its_claims(run, script, verdicts):
    """(That each prediction holds is `run_script`'s to check.)"""
    claims = run(script)["claims"]
    assert {name: claims[name]["verdict"] for name in verdicts} == verdicts


def test_embeddings_of_any_model(run, llama_folder, gpt2_folder):
    report = run(embedding_explorer, "--model", llama_folder)
    claims = report["claims"]
    assert claims["order-matters"]["measured"] == [True] and claims["input-matrix-checkpoint"]["holds"]
    assert "no position table" in report["out"]
    run(embedding_explorer, "--model", gpt2_folder)


def test_anatomy_of_other_models_and_files(run, tmp_path, gpt2_folder, llama_folder):
    assert run(model_file_anatomy, "--model", llama_folder)["claims"]["parameters-from-config"]["holds"]
    write_gguf(gpt2_folder, tmp_path / "x.gguf")
    assert run(model_file_anatomy, "--file", tmp_path / "x.gguf")["claims"]["file-layout"]["holds"]
    # of another kind: still shown
    (tmp_path / "config.json").write_text('{"model_type": "bert", "vocab_size": 5}')
    save_file({"bert.\x1b[31mx": torch.zeros(2)}, tmp_path / "y.safetensors")
    report = run(model_file_anatomy, "--file", tmp_path / "y.safetensors")
    assert "7b-by-precision" in report["claims"] and "\x1b[31mx" not in report["out"]


def test_anatomy_of_a_part_of_a_model(run, tmp_path):
    """A GGUF file that tells nothing of its model is no fault of the course."""
    writer = gguf.GGUFWriter(tmp_path / "part.gguf", "llama")
    writer.add_tensor("blk.0.ffn_up.weight", np.ones((4, 8), dtype=np.float32))
    write_out(writer)
    report = run(model_file_anatomy, "--file", tmp_path / "part.gguf")
    out = " ".join(report["out"].split())
    assert "file-layout" not in report["claims"] and "ffn_up" in out
    assert "This file does not say llama.block_count and tokenizer.ggml.tokens." in out


def test_anatomy_of_an_old_checkpoint(run, tmp_path, gpt2_folder):
    """It also holds masks, which are no weights."""
    folder = shutil.copytree(gpt2_folder, tmp_path / "old")
    tensors = load_file(folder / "model.safetensors") | {"h.0.attn.bias": torch.ones(1, 1, 4, 4)}
    save_file(tensors, folder / "model.safetensors")
    assert run(model_file_anatomy, "--model", folder)["claims"]["parameters-from-config"]["holds"]


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["--model", "tales", "--context", "512"], []),
        (["--model", "{tmp}/mine", "--context", "100", "--card", "h200", "--kv", "FP8"], ["a rough cloud price"]),
        (["--model", "llama-3-70b", "--card", "t4"],
         ["does not fit on one T4 16 GB", "H100 80 GB"]),
        (["--model", "qwen3-8b", "--card", "l4", "--context", "40000"],
         ["no user with 40,000 tokens does"]),
    ],
)  # fmt: skip
def test_memory_equation_for_any_model_and_card(run, tmp_path, argv, shown):
    GPT2Config(n_embd=8, n_head=2, n_layer=3, n_positions=100).save_pretrained(tmp_path / "mine")
    out = " ".join(run(gpu_memory_equation, *(a.format(tmp=tmp_path) for a in argv))["out"].split())
    assert all(text in out for text in shown)


@pytest.mark.parametrize(
    ("script", "argv", "message"),
    [
        (embedding_explorer, ["--model", "{tmp}/nothing"], "no model folder"),
        (embedding_explorer, ["--model", "{tmp}"], "no config.json"),
        (embedding_explorer, ["--word", "photosynthesis"], "'photosynthesis' is not one token"),
        (model_file_anatomy, ["--file", "nowhere.gguf"], "no file at nowhere.gguf"),
        (model_file_anatomy, ["--file", "model.bin"], "unknown ending"),
        (model_file_anatomy, ["--model", "{tmp}/bare"], "no model.safetensors"),
        (model_file_anatomy, ["--model", "{tmp}/two"], "files of two models"),
        (gpu_memory_equation, ["--model", "llama-9"], "unknown model 'llama-9'"),
        (gpu_memory_equation, ["--card", "t5"], "unknown card 't5'"),
        (gpu_memory_equation, ["--context", "9000"], "llama-3-8b reads at most 8,192 tokens"),
    ],
)
def test_a_mistake_ends_in_one_line(mistake_of, script, argv, message, tmp_path):
    (tmp_path / "bare").mkdir()
    shutil.copy(find_model("tales") / "config.json", tmp_path / "bare")
    shutil.copytree(find_model("tales"), tmp_path / "two")
    shutil.copy(find_model("tales-draft") / "config.json", tmp_path / "two")
    assert message in mistake_of(script, *(a.format(tmp=tmp_path) for a in argv))
