"""The training script on a text of two pages: it learns, and others load it."""

import itertools
import json
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.training import train_model


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A tenth of everything, so that a run takes seconds."""
    monkeypatch.setattr(train_model, "TOKENS_PER_STEP", 256)
    monkeypatch.setattr(train_model, "CONTEXT", 128)
    monkeypatch.setattr(train_model, "WINDOW_SCHEDULE", [(0.5, 32), (1.0, 128)])


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(3):
        pairs = itertools.product(("fox", "king", "owl"), ("hare", "cook"))
        stories = [f"The {a} said to the {b}: good day." for a, b in pairs]
        (folder / f"{i}.txt").write_text("\n<|endoftext|>\n".join(stories * 8))
    return folder


def train(monkeypatch, texts, out, steps):
    arguments = ["--text", texts, "--valid", texts / "0.txt", "--out", out, "--preset", "tales-draft"]
    arguments += ["--vocab-size", "300", "--steps", steps, "--no-compile"]
    monkeypatch.setattr(sys, "argv", ["train_model.py", *map(str, arguments)])
    train_model.main()
    return json.loads((out / "training_log.json").read_text())


def test_it_learns_and_others_can_load_it(monkeypatch, texts, tmp_path):
    log = train(monkeypatch, texts, tmp_path / "model", 30)
    assert log["log"][-1]["loss"] < log["log"][0]["loss"] - 0.5
    assert log["valid_bits_per_byte"] < 3
    tok = AutoTokenizer.from_pretrained(tmp_path / "model")
    ours = BPETokenizer.from_file(tmp_path / "model" / "tokenizer.json")
    assert tok("The fox said").input_ids == ours.encode("The fox said")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.dtype == torch.bfloat16
    assert model.config.eos_token_id == tok.eos_token_id == ours.eos_token_id
