"""The model in the page: its ids, logits and tokens are Python's."""

import json

import pytest
import torch

from labkit.models import find_model
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.model import NoCache, Transformer, generate_cached
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase2_attention_kvcache.model.truncation import to_probs
from tests.web.hostile import HOSTILE
from web.build import MODELS

LINES = (find_model("tales").parents[2] / "phase2_attention_kvcache" / "texts" / "valid.txt").read_text(
    encoding="utf-8"
)

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


@pytest.fixture(scope="module")
def tok() -> BPETokenizer:
    return BPETokenizer.from_file(find_model("tales") / "tokenizer.json")


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


@torch.inference_mode()
def test_what_is_computed_on_the_way_is_what_python_computes(model_page, model, tok, name):
    ids = tok.encode("The king took off his crown")
    kept = {}

    class Watching(NoCache):
        def attend(self, layer, q, k, v):
            weights = torch.einsum("nhd,mhd->hnm", q, k) / q.shape[-1] ** 0.5
            future = torch.ones(len(q), len(q), dtype=torch.bool).triu(1)
            kept[layer] = weights.masked_fill(future, -torch.inf).softmax(-1)
            return super().attend(layer, q, k, v)

    handles = [
        block.register_forward_hook(lambda _, __, out, i=i: kept.update({f"block {i}": out}))
        for i, block in enumerate(model.blocks)
    ]
    model(torch.tensor(ids), torch.arange(len(ids)), Watching())
    for handle in handles:
        handle.remove()
    page = model_page(name)
    got = page.evaluate(
        """async (ids) => (await lm.trace(ids, ["attention", "after block"])).seen.map(({ name, layer, values }) =>
          name === "attention" ? { ...values, layer, weights: Array.from(values.weights) } : { layer, hidden: Array.from(values) })""",
        ids,
    )
    for entry in got:
        if "hidden" in entry:
            assert torch.allclose(
                torch.tensor(entry["hidden"], dtype=torch.float32),
                kept[f"block {entry['layer']}"].flatten(),
                atol=1e-3,
            )
        else:
            row = kept[entry["layer"]][entry["head"], entry["token"], : entry["token"] + 1]
            assert torch.allclose(torch.tensor(entry["weights"], dtype=torch.float32), row, atol=1e-5)
    config = model.config
    assert len(got) == config.num_layers * (config.num_heads * len(ids) + 1)
    last = page.evaluate(
        """async (ids) => { const { seen } = await lm.trace(ids, ["after block"]); const all = await lm.lens(seen.at(-1).values);
          return Array.from(all.slice(-8192)); }""",
        ids,
    )
    want = model.logits(model.final_norm(kept[f"block {config.num_layers - 1}"])[-1:])[0]
    assert (torch.tensor(last) - want).abs().max() < 1e-3


SETTINGS = [
    {"temperature": 0.7},
    {"temperature": 0},
    {"temperature": 1e-3},
    {"top_k": 5},
    {"top_p": 0.6},
    {"min_p": 0.05},
    {"temperature": 1.5, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    {"top_p": 1e-9},
]


def test_sampling_is_pythons(model_page):
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(0)) * 3
    logits[0, :20] = logits[0, 0]  # equals
    page = model_page()
    for row in logits:
        for settings in SETTINGS:
            params = SamplingParams(**settings)
            want = to_probs(row[None], [params])[0]
            if params.greedy:
                want = torch.zeros_like(row)
                want[row.argmax()] = 1
            got = page.evaluate(
                "([row, settings]) => Array.from(sampling.toProbs(Float32Array.from(row), settings))",
                [row.tolist(), settings],
            )
            assert torch.allclose(torch.tensor(got, dtype=torch.float32), want, atol=1e-5), settings
    probs = [0.0, 0.25, 0.5, 0.0, 0.25]
    for point, token in [(0, 1), (0.2499, 1), (0.25, 2), (0.7499, 2), (0.75, 4), (0.9999, 4)]:
        assert page.evaluate("([p, at]) => sampling.draw(p, at)", [probs, point]) == token


def test_too_many_tokens_are_refused_in_one_line(model_page):
    page = model_page("tales-draft")
    for ids in ([], [1] * 1025):
        said = page.evaluate("(ids) => lm.logits(ids).then(() => 'computed', (error) => error.message)", ids)
        assert said == f"{len(ids)} tokens: the model takes 1 to 1024"
    assert page.evaluate("async () => (await lm.logits(new Array(1024).fill(7))).length") == 8192
