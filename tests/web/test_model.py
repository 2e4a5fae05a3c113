"""The model in the page: its ids, logits and tokens are Python's."""

import json

import pytest
import torch

from labkit.models import find_model
from phase2_attention_kvcache.model import NoCache, Transformer, generate_cached
from web.build import MODELS

LINES = (find_model("tales").parents[2] / "phase2_attention_kvcache" / "texts" / "valid.txt").read_text(
    encoding="utf-8"
)

# Strings that have broken tokenizers and pages.
HOSTILE = [
    "",
    "\n\n\n",
    "\r\n\t \u00a0\u2003\u3000\u2028\u0085\ufeff",
    "<|endoftext|>",
    "a" * 10_000,
    "ab" * 3_000 + " " * 2_000 + "!",
    "😀👩‍👩‍👧‍👦🏳️‍🌈🇩🇪",
    "\ude00\ud83d",  # halves of a character in the wrong order
    "x\ud83d\ude00y",
    "שלום مرحبا नमस्ते 你好，世界 こんにちは 안녕하세요",
    "e\u0301 é ﬁ ǆ İ ß z̷̧̢̛̮̻̪͔̈́̀̈a̶͇̅",
    "\x00\x01\x7f\u0080\uffff\U0010ffff",
    "don't can't I'LL we've 'sdmt ''' ``quotes``",
    "١٢٣ ⅷ ½ ² 𝟙𝟚",
]

# A page that has nothing to do but hold the modules.
START = """async (name) => {
  const { LanguageModel } = await import("/model/language_model.js");
  window.lm = new LanguageModel(name);
  window.sampling = await import("/model/sampling.js");
  window.tok = await lm.tokenizer();
}"""


@pytest.fixture
def model_page(open_page):
    def start(name: str = "tales"):
        page = open_page("recap")
        page.evaluate(START, name)
        return page

    return start


@pytest.fixture(scope="module", params=MODELS)
def name(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(name) -> Transformer:
    return Transformer.from_pretrained(name)


def test_token_ids_of_lines_and_of_hostile_strings(model_page, tok):
    texts = [line for line in LINES.splitlines() if line.strip()] + HOSTILE
    page = model_page()
    # JSON with escapes: halves of surrogate pairs come through as they are.
    got = page.evaluate("(texts) => JSON.parse(texts).map((text) => tok.encode(text))", json.dumps(texts))
    for text, ids in zip(texts, got, strict=True):
        assert ids == tok.encode(text), ascii(text[:80])
    back = page.evaluate("(all) => all.map((ids) => tok.decode(ids))", got)
    assert back == [tok.decode(ids) for ids in got]


@torch.inference_mode()
def test_logits_are_pythons(model_page, model, tok, name):
    page = model_page(name)
    for text in ("The", "Once upon a time there was a king who", LINES[:3000]):
        ids = tok.encode(text)[-200:]  # more than the linear layers take at a time
        want = model.logits(model(torch.tensor(ids), torch.arange(len(ids)), NoCache())[-1:])[0]
        got = torch.tensor(page.evaluate("async (ids) => Array.from(await lm.logits(ids))", ids))
        assert (got - want).abs().max() < 1e-3
        seen = page.evaluate("async (ids) => Array.from((await lm.trace(ids, [])).logits)", ids)
        assert (torch.tensor(seen) - want).abs().max() < 1e-3


def test_200_greedy_tokens_are_pythons(model_page, model, tok, name):
    ids = tok.encode("Once upon a time there was a")
    said = model_page(name).evaluate(
        """async (ids) => {
          const first = ids.length;
          while (ids.length < first + 200) ids.push(sampling.likeliest(await lm.logits(ids, "test")));
          return ids.slice(first);
        }""",
        ids,
    )
    assert said == generate_cached(model, ids, 200).token_ids


def test_a_token_is_drawn_in_proportion_to_its_probability(model_page):
    """(The probabilities themselves: test_pieces_on_page.py.)"""
    page, probs = model_page(), [0.0, 0.25, 0.5, 0.0, 0.25]
    for point, token in [(0, 1), (0.2499, 1), (0.25, 2), (0.7499, 2), (0.75, 4), (0.9999, 4)]:
        assert page.evaluate("([p, at]) => sampling.draw(p, at)", [probs, point]) == token


def test_too_many_tokens_are_refused_in_one_line(model_page):
    page = model_page("tales-draft")
    for ids in ([], [1] * 1025):
        said = page.evaluate("(ids) => lm.logits(ids).then(() => 'computed', (error) => error.message)", ids)
        assert said == f"{len(ids)} tokens: the model takes 1 to 1024"
    assert page.evaluate("async () => (await lm.logits(new Array(1024).fill(7))).length") == 8192
