"""The pieces on the page, clicked: what they show is what Python computes."""

import pytest
import torch

from labkit.models import find_model
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.model import NoCache, SamplingParams, Transformer
from phase2_attention_kvcache.model.truncation import to_probs
from tests.web.hostile import HOSTILE


@pytest.fixture(scope="module")
def tok() -> BPETokenizer:
    return BPETokenizer.from_file(find_model("tales") / "tokenizer.json")


@pytest.fixture(scope="module")
def model() -> Transformer:
    return Transformer.from_pretrained("tales")


def slide(piece, label: str, value: float) -> None:
    piece.get_by_label(label).evaluate(
        "(input, value) => { input.value = value; input.dispatchEvent(new Event('input')); }", value
    )


def shown(piece, name: str) -> str:
    return piece.locator(f'[data-name="{name}"]').text_content()


# ---------------------------------------------------------------------- tokens


def test_tokens_are_pythons(piece_on, tok):
    _, piece = piece_on("tokens", "tokens")
    for text in [
        "The king said: 'Never!' 123",
        *(t for t in HOSTILE if 0 < len(t) < 100 and t.isprintable()),
        "the king 😀 שלום " * 600,
    ]:
        piece.get_by_label("text").fill(text)
        ids = tok.encode(text)
        chips = piece.locator(".chip").evaluate_all("(chips) => chips.map((chip) => Number(chip.dataset.id))")
        assert chips == ids
        assert int(shown(piece, "tokens")) == len(ids)
        assert int(shown(piece, "bytes")) == len(text.encode())


# ---------------------------------------------------------------------- sampling


@torch.inference_mode()
def logits_behind(model, ids):
    return model.logits(model(torch.tensor(ids), torch.arange(len(ids)), NoCache())[-1:])


def test_knobs_show_what_python_computes_on_a_text_of_the_readers(piece_on, tok, model):
    page, piece = piece_on("sampling", "sampling")
    text = "Once upon a time there was a little"
    piece.get_by_label("text").fill(text)
    logits = logits_behind(model, tok.encode(text))
    best = int(logits.argmax())
    page.wait_for_function(
        "(id) => document.querySelector('.sam [data-id]').dataset.id === id", arg=str(best)
    )
    for settings in (
        {"temperature": 0.7},
        {"temperature": 1.4, "top_k": 7},
        {"temperature": 1, "top_k": 0, "top_p": 0.5},
        {"top_p": 1, "min_p": 0.1},
        {"temperature": 0, "min_p": 0},
    ):
        for name, value in settings.items():
            slide(piece, name, value)
        now = {
            name: float(piece.get_by_label(name).input_value()) for name in ("temperature", "top_p", "min_p")
        }
        top_k = int(piece.get_by_label("top_k").input_value())
        params = SamplingParams(**now, top_k=top_k)
        probs = to_probs(logits, [params])[0]
        if params.greedy:
            probs = torch.nn.functional.one_hot(logits[0].argmax(), 8192).float()
        assert int(shown(piece, "tokens left").replace(",", "")) == int((probs > 0).sum())
        for row in piece.locator("[data-id]").all():
            p = float(probs[int(row.get_attribute("data-id"))])
            assert row.text_content() == (f"{100 * p:.1f}%" if p else "out")


def test_a_drawn_token_can_be_appended(piece_on, tok, model):
    page, piece = piece_on("sampling", "sampling")
    slide(piece, "temperature", 0)
    text = piece.get_by_label("text").input_value()
    for _ in range(3):
        best = int(logits_behind(model, tok.encode(text)).argmax())
        page.wait_for_function(
            "(id) => document.querySelector('.sam [data-id]').dataset.id === id", arg=str(best)
        )
        piece.get_by_role("button", name="draw a token").click()
        piece.get_by_role("button", name="append it").click()
        text += tok.decode([best])
        page.wait_for_function("(text) => document.querySelector('.sam textarea').value === text", arg=text)
