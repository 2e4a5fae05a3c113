"""Small models trained without a choice: they differ in it alone, train like the model that is served, and learn."""

import json
import sys

import pytest
import torch

from phase2_attention_kvcache.model import NoCache, Transformer
from phase2_attention_kvcache.story.trained_without import RESULT, read_trained
from phase2_attention_kvcache.training import train_without
from phase2_attention_kvcache.training.train_without import RECIPES, WINDOW, Windows


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_the_windows_of_a_step_are_read_each_by_itself(recipe):
    """What is trained is what a plain forward pass computes later."""
    model = Transformer.random(recipe)
    ids, positions = torch.randint(0, recipe.vocab_size, (2 * WINDOW,)), torch.arange(WINDOW)
    with torch.inference_mode():
        together = model(ids, positions.repeat(2), Windows())
        alone = [model(window, positions, NoCache(recipe)) for window in ids.split(WINDOW)]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-4, rtol=1e-4)


def test_it_learns(monkeypatch, tmp_path):
    text, out = tmp_path / "text.txt", tmp_path / "out.json"
    text.write_text("The fox said to the hare: good day. The owl said to the king: good night. " * 200)
    monkeypatch.setattr(train_without, "WINDOWS_PER_STEP", 1)
    monkeypatch.setattr(train_without, "VOCABULARY", 300)
    monkeypatch.setattr(train_without, "RECIPES", RECIPES[::7])
    argv = [
        "train_without.py",
        *map(str, ("--text", text, "--valid", text, "--out", out, "--steps", 10, "--seeds", 1)),
    ]
    monkeypatch.setattr(sys, "argv", argv)
    train_without.main()
    runs = json.loads(out.read_text())["runs"]
    assert [r["recipe"] for r in runs] == [RECIPES[0].name, RECIPES[7].name]
    assert all(r["valid_loss"] < r["losses"][0] - 0.5 for r in runs)


def test_what_is_told_is_what_was_trained():
    """The recipes of the committed figures are those of the script."""
    result, trained = json.loads(RESULT.read_text()), read_trained()
    assert list(trained) == [r.name for r in RECIPES]
    for recipe in RECIPES:
        of_name = trained[recipe.name]
        assert of_name.parameters == sum(p.numel() for p in Transformer.random(recipe).parameters())
        assert len(of_name.more) == 3 and len(of_name.losses) == result["steps"] // 10
