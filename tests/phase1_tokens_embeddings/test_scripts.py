"""The scripts of the phase: their claims hold, they take any model, and a mistake gets one line."""

import shutil

import pytest
import tiktoken
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config

from labkit.catalog import text_of_phase
from labkit.models import find_model
from phase1_tokens_embeddings import (
    embedding_explorer,
    gpu_memory_equation,
    model_file_anatomy,
    tokenization_lab,
)
from phase1_tokens_embeddings.story import token_density, tokenization_story
from phase1_tokens_embeddings.story.token_density import sample_text
from phase1_tokens_embeddings.story.tokenization_story import show_tokens, with_first_merges
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase1_tokens_embeddings.weights.gguf_writer import write_gguf

FIGURES = {tokenization_lab: "token_density"}
CLAIMS = ["gpt2-vocab", "hello-ids", "unbelievable-ids", "prompt-ids", "density", "context-128k"]


@pytest.fixture
def run(run_script):
    """Run a script with its one figure."""
    return lambda script, *argv: run_script(
        script, "--quick", *argv, figures=[FIGURES.get(script, script.__name__.split(".")[-1])]
    )


def test_the_text_prints_what_is_learned():
    text = text_of_phase("phase1_tokens_embeddings")
    tok, sentence = BPETokenizer.train(token_density.course_texts(), 1257), tokenization_story.SENTENCE
    for merges, count in (
        (0, "33 tokens, before any"),
        (50, "20 tokens, after 50"),
        (1000, "10 tokens, after 1,000"),
    ):
        ids = with_first_merges(tok, merges).encode(sentence)
        assert len(ids) == int(count.split()[0]) and count in text
        assert show_tokens(tok, ids) in text


def test_tokenization(run):
    report = run(tokenization_lab)
    assert set(CLAIMS) <= set(report["claims"])
    assert "The sentence shrinks" in report["out"]
    rows, length = report["results"]["shrinking"], len(tokenization_story.SENTENCE)
    assert rows[0] == [0, length]
    assert rows[-1][1] < length / 3
    first, shared = report["results"]["chat_prompt"]
    assert shared == first and report["results"]["chat_end_marks"] == [2, 1]


def test_tokenization_with_gpt2s_vocabulary(run):
    report = run(tokenization_lab, "--model", "gpt2")
    reference = tiktoken.get_encoding("gpt2")
    found = report["claims"]
    assert found["gpt2-vocab"]["measured"] == reference.n_vocab
    assert found["density"]["kind"] == "timing"
    for value, name in zip(found["density"]["measured"], ("prose", "technical", "code"), strict=True):
        text = sample_text(name)
        assert value == pytest.approx(len(text) / len(reference.encode_ordinary(text)), abs=0.006)
    prose = sample_text("prose")
    filled = reference.decode(reference.encode_ordinary(prose * 400)[:128_000])
    assert found["context-128k"]["measured"][0] == len(filled)
    assert found["context-128k"]["verdict"] == "corrected"
    assert list(report["results"]["density"]) == ["GPT-2"]


def test_tokenization_of_a_text_of_ones_own(run, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "notes.md").write_text("One fish, two fish. Один, два. 一二三。\n" * 30, encoding="utf-8")
    report = run(tokenization_lab, "--text", folder)
    assert "nothing was left to merge" in report["out"] and "your text" in report["out"]
    assert report["results"]["training_bytes"] == (folder / "notes.md").stat().st_size


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
    assert run(model_file_anatomy, "--model", tmp_path / "x.gguf")["claims"]["file-layout"]["holds"]


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
        (tokenization_lab, ["--text", "{tmp}/blank.txt"], "holds no text"),
        (tokenization_lab, ["--text", "{tmp}/latin1.txt"], "cannot be read as UTF-8 text"),
        (tokenization_lab, ["--text", "{tmp}/binary.txt"], "is a binary file"),
        (tokenization_lab, ["--text", "{tmp}/bare"], "holds no text: give a .txt or .md or .py file"),
        (tokenization_lab, ["--sentence", " "], "--sentence is empty"),
        (tokenization_lab, ["--model", "./nowhere"], "no model folder at"),
        (tokenization_lab, ["--model", "{tmp}/bare"], "holds no tokenizer.json"),
        (embedding_explorer, ["--model", "{tmp}/nothing"], "no model folder"),
        (embedding_explorer, ["--model", "{tmp}"], "no config.json"),
        (embedding_explorer, ["--word", "photosynthesis"], "'photosynthesis' is not one token"),
        (model_file_anatomy, ["--model", "{tmp}/bare"], "no model.safetensors"),
        (gpu_memory_equation, ["--model", "llama-9"], "unknown model 'llama-9'"),
        (gpu_memory_equation, ["--card", "t5"], "unknown card 't5'"),
        (gpu_memory_equation, ["--context", "9000"], "llama-3-8b reads at most 8,192 tokens"),
    ],
)
def test_a_mistake_ends_in_one_line(mistake_of, script, argv, message, tmp_path):
    for name, content in (("blank", b" \n"), ("latin1", b"caf\xe9 au lait"), ("binary", b"a\0b")):
        (tmp_path / f"{name}.txt").write_bytes(content)
    (tmp_path / "bare").mkdir()
    shutil.copy(find_model("tales") / "config.json", tmp_path / "bare")
    assert message in mistake_of(script, *(a.format(tmp=tmp_path) for a in argv))
