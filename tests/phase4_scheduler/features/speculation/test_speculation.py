"""Speculative decoding changes how many steps an answer takes, and nothing else about it."""

import random
import warnings

import pytest
import torch
from transformers import GPT2LMHeadModel

from labkit.errors import LabError
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase2_attention_kvcache.model.transformer import Transformer
from phase2_attention_kvcache.story.small_families import write_small_model
from phase4_scheduler.engine.engine import LLMEngine
from phase4_scheduler.features.speculation.draft_model import DraftModel
from tests.phase4_scheduler.engine.test_engine import PREEMPT, SETTINGS, serve

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
NGRAM = dict(method="ngram", prompt_lookup_min=1, prompt_lookup_max=3)


@pytest.fixture(scope="session")
def small_model(tiny, tmp_path_factory):
    """A model that often agrees with `tiny`: its weights, a little changed. Its folder, and as transformers runs it."""
    torch.manual_seed(3)
    reference = GPT2LMHeadModel(tiny.reference.config)
    reference.load_state_dict(tiny.reference.state_dict())
    with torch.no_grad():
        for weights in reference.parameters():
            weights += 0.02 * torch.randn_like(weights)
    folder = tmp_path_factory.mktemp("small_model")
    reference.eval().save_pretrained(folder)
    return folder, reference


@pytest.fixture
def speculate(small_model):
    """By name, the settings of speculative decoding with k drafts."""

    def make(name, k):
        if name == "ngram":
            return NGRAM | dict(num_speculative_tokens=k)
        return dict(model=small_model[0], num_speculative_tokens=k, draft_sample_method=name)

    return make


def stats(engine):
    return engine.core.spec_decoding_stats


# ---------------------------------------------------------------------- tokens


@pytest.mark.parametrize(
    ("name", "method", "k"),
    [
        ("roomy", "ngram", 5), ("roomy", "greedy", 4), ("block of 1", "greedy", 5), ("block of 7", "ngram", 3),
        ("budget of 5", "greedy", 3), ("threshold", "ngram", 2), ("no chunks", "greedy", 1), ("tight", "ngram", 3),
        ("tight, swap", "greedy", 2), ("tight, little swap", "ngram", 1), ("priority", "greedy", 2),
        ("priority, no prefix cache", "ngram", 5),
    ],
)  # fmt: skip
def test_greedy_tokens_are_those_of_transformers(name, method, k, tiny, make_prompts, speculate):
    engine = tiny.engine(**SETTINGS[name] | dict(max_model_len=100), speculative_config=speculate(method, k))
    prompts = make_prompts(14, 400, seed=len(name))
    answers = [a[0] for a in serve(engine, prompts, [GREEDY] * 14)]
    assert all(len(a) == 12 for a in answers)
    tiny.assert_greedy(prompts, answers)
    assert engine.core.stats.num_preemptions > 0 or name not in PREEMPT - {"block of 7"}
    counted = stats(engine)
    assert 0 < counted.num_accepted_tokens < counted.num_draft_tokens
    assert counted.num_accepted_tokens == sum(counted.num_accepted_tokens_per_pos)
    assert counted.num_accepted_tokens_per_pos == sorted(counted.num_accepted_tokens_per_pos, reverse=True)


KNOBS = {
    "plain": {},
    "top-p and top-k": dict(top_p=0.9, top_k=20),
    "min-p": dict(min_p=0.05),
    "penalties": dict(frequency_penalty=0.8, presence_penalty=0.5, repetition_penalty=1.3),
    "bias": dict(logit_bias={5: 4.0, 9: -50.0}),
    "bad words": dict(bad_words=["the", "a"]),
    "allowed": dict(allowed_token_ids=list(range(0, 400, 3))),
    "min_tokens": dict(min_tokens=6, ignore_eos=False, stop_token_ids=list(range(0, 400, 5))),
    "stop token": dict(stop_token_ids=list(range(0, 400, 17))),
    "stop string": dict(stop=["e", "th"]),
    "kept stop string": dict(stop=["e", "in"], include_stop_str_in_output=True),
    "logprobs": dict(logprobs=3),
    "prompt_logprobs": dict(prompt_logprobs=2),
    "n": dict(n=3),
    "cold": dict(temperature=0.3),
    "one token": dict(max_tokens=1),
    "two tokens": dict(max_tokens=2),
}


ROOMY = dict(block_size=4, num_blocks=800, max_num_seqs=32)


@pytest.fixture(scope="module")
def with_seeds(tiny):
    """Prompts, what each asks for, and the answers without drafts."""
    rng = random.Random(1)
    common = dict(temperature=0.8, max_tokens=14, ignore_eos=True)
    params = [SamplingParams(**common | dict(seed=i) | knobs) for i in range(3) for knobs in KNOBS.values()]
    prompts = [[rng.randrange(400) for _ in range(rng.randint(1, 30))] for _ in params]
    return prompts, params, tiny.engine(**ROOMY).generate(prompts, params)


@pytest.mark.parametrize("method", ["ngram", "greedy", "probabilistic"])
def test_with_a_seed_every_answer_is_the_one_without_drafts(method, tiny, with_seeds, speculate):
    """Token for token, and all that is told of them: where drafts are no matter of chance, nor is what stands of them."""
    prompts, params, plain = with_seeds
    engine = tiny.engine(**ROOMY, speculative_config=speculate(method, 3))
    for one, other in zip(plain, engine.generate(prompts, params), strict=True):
        for a, b in zip(one.outputs, other.outputs, strict=True):
            assert (a.token_ids, a.text, a.finish_reason, a.stop_reason) == (
                b.token_ids, b.text, b.finish_reason, b.stop_reason,
            )  # fmt: skip
            assert len(b.metrics.token_times) == len(b.token_ids)
            assert (a.logprobs is None) == (b.logprobs is None)
            for x, y in zip(a.logprobs or [], b.logprobs or [], strict=True):
                assert x == pytest.approx(y, abs=1e-4) and x.rank == y.rank
        for x, y in zip(one.prompt_logprobs or [], other.prompt_logprobs or [], strict=True):
            assert x == pytest.approx(y, abs=1e-4)
    assert 0 < stats(engine).num_accepted_tokens < stats(engine).num_draft_tokens


@pytest.mark.proof
def test_in_16_bits_drafts_move_fewer_answers_than_rounding_does(tiny):
    """With the same seeds bfloat16 draws the same tokens as float32, but for what rounding moves: about 1 answer of 20.
    Drafts change the number of rows of a matrix multiplication, and so its rounding: about 1 answer of 20,000."""
    rng, number = random.Random(5), 1000
    prompts = [[rng.randrange(8) for _ in range(24)] for _ in range(number)]
    common = dict(max_tokens=4, ignore_eos=True, allowed_token_ids=list(range(8)))
    params = [SamplingParams(seed=i, **common) for i in range(number)]
    half = Transformer.from_pretrained(tiny.folder, "bfloat16", "cpu")
    drafting = tiny.engine(model=half, **ROOMY, speculative_config=NGRAM | dict(num_speculative_tokens=3))
    exact, plain, drafted = (
        [output.token_ids for output in engine.generate(prompts, params)]
        for engine in (tiny.engine(**ROOMY), tiny.engine(model=half, **ROOMY), drafting)
    )
    by_rounding, by_drafts = (sum(map(list.__ne__, plain, other)) for other in (exact, drafted))
    assert stats(drafting).num_accepted_tokens > number / 5
    assert 10 * by_drafts < by_rounding < number / 10, (by_drafts, by_rounding)


# ---------------------------------------------------------------------- the draft model's own cache


@pytest.fixture
def drafts_checked(small_model, monkeypatch):
    """All tokens that a draft model drafts greedily, each compared with what transformers says without a cache."""
    reference = small_model[1]
    checked = []
    draft = DraftModel.draft

    @torch.inference_mode()
    def checking(self, inputs):
        texts = [list(given.token_ids) for given in inputs]
        found = draft(self, inputs)
        for text, drafts in zip(texts, found, strict=True):
            if drafts.token_ids:
                row = reference(torch.tensor([text + drafts.token_ids])).logits[0]
                for j, token in enumerate(drafts.token_ids):
                    place = row[len(text) - 1 + j]
                    # (an engine survives an assert here)
                    checked.append(bool(place.max() - place[token] < 1e-4))
        return found

    monkeypatch.setattr(DraftModel, "draft", checking)
    return checked


@pytest.mark.parametrize("name", ["block of 1", "budget of 5", "tight, swap", "priority"])
def test_a_draft_model_drafts_what_it_would_without_a_cache(
    name, tiny, make_prompts, speculate, drafts_checked
):
    """Prefix hits, preemption, swaps, forks and rejected drafts leave nothing wrong in its blocks."""
    settings = SETTINGS[name] | dict(max_num_seqs=8, max_model_len=100)
    engine = tiny.engine(**settings, speculative_config=speculate("greedy", 3))
    prompts = make_prompts(12, 400, seed=2)
    params = [SamplingParams(max_tokens=10, n=1 + i % 2, seed=i, ignore_eos=True) for i in range(12)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a drafter that fails only warns
        serve(engine, prompts, params)
    assert len(drafts_checked) > 100 and all(drafts_checked)


# ---------------------------------------------------------------------- steps that fail


# ---------------------------------------------------------------------- events, warnings, refusals


@pytest.mark.parametrize("name", ["roomy", "block of 7", "tight", "tight, swap"])
def test_after_a_failure_of_a_draft_model_the_answers_are_the_same(name, tiny, speculate, monkeypatch):
    """It guesses from keys that were never written, and what it guesses is verified all the same."""
    run, calls = DraftModel._run, []

    def failing(self, inputs):
        calls.append(len(inputs))
        if len(calls) in (1, 2, 9, 14, 25):  # while it keeps up, and while it guesses
            raise MemoryError("no room")
        return run(self, inputs)

    prompts = [[7] * 21 + [i, 5] for i in range(10)]  # what they share lies in the prefix cache
    params = [SamplingParams(max_tokens=10, n=1 + i % 2, seed=i, ignore_eos=True) for i in range(10)]
    settings = SETTINGS[name] | dict(max_num_seqs=5, max_model_len=100)
    wanted = serve(tiny.engine(**settings), prompts, params)
    monkeypatch.setattr(DraftModel, "_run", failing)
    engine = tiny.engine(**settings, speculative_config=speculate("greedy", 3))
    said = r"no drafts in this step: the drafter failed \(MemoryError: no room\)"
    with pytest.warns(UserWarning, match=said):
        assert serve(engine, prompts, params) == wanted
    assert len(calls) > 25


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (dict(method="ngram"), "num_speculative_tokens is missing: give 1 or more"),
        (dict(num_speculative_tokens=3), "method is None: use ngram, draft_model or custom"),
        (dict(num_speculative_tokens=3, method="eagle"), "method is 'eagle': use ngram"),
        (dict(num_speculative_tokens=0, method="ngram"), "num_speculative_tokens is 0: it must be a whole number, 1 or above"),
        (dict(num_speculative_tokens=2.5, method="ngram"), "num_speculative_tokens is 2.5"),
        (dict(num_speculative_tokens=True, method="ngram"), "num_speculative_tokens is True"),
        (dict(num_speculative_tokens=128, method="ngram"), "num_speculative_tokens is 128, and a request holds at most 128"),
        (
            dict(num_speculative_tokens=3, method="ngram", prompt_lookup_min=4, prompt_lookup_max=2),
            "prompt_lookup_min is 4, prompt_lookup_max 2: the first must not be larger",
        ),
        (dict(num_speculative_tokens=3, method="ngram", prompt_lookup_min=0), "prompt_lookup_min is 0"),
        (dict(num_speculative_tokens=3, method="draft_model"), "method draft_model needs a model"),
        (
            dict(num_speculative_tokens=3, method="ngram", model="tales-draft"),
            "model belongs to the method draft_model, and method is ngram: leave one out",
        ),
        (
            dict(num_speculative_tokens=3, model="tales-draft", prompt_lookup_max=3),
            "prompt_lookup_max belongs to the method ngram, and method is draft_model",
        ),
        (dict(num_speculative_tokens=3, method="custom"), "method is 'custom': give the engine your own"),
        (dict(num_speculative_tokens=3, method="ngram", lookup=3), "unknown field 'lookup': it has num_spec"),
        (
            dict(num_speculative_tokens=3, model="x", draft_sample_method="beam"),
            "draft_sample_method is 'beam': use greedy or probabilistic",
        ),
        (5, "speculative_config is 5: give a dict"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(given, complaint, tiny):
    with pytest.raises(ValueError, match=complaint):
        tiny.engine(speculative_config=given)


def test_a_draft_model_must_fit(tiny, small_model, tmp_path):
    write_small_model("llama", tmp_path)
    with pytest.raises(ValueError, match="has a vocabulary of 97 tokens, the model one of 400"):
        tiny.engine(speculative_config=dict(model=tmp_path, num_speculative_tokens=2))
    with pytest.raises(LabError, match="nowhere"):
        tiny.engine(speculative_config=dict(model="nowhere", num_speculative_tokens=2))
    with pytest.raises(
        ValueError, match="max_num_batched_tokens is 3: a request with 2 draft tokens needs 4"
    ):
        tiny.engine(
            max_num_batched_tokens=3, speculative_config=dict(model=small_model[0], num_speculative_tokens=2)
        )
    with pytest.raises(ValueError, match="a proposer of your own needs speculative_config"):
        LLMEngine(tiny.model, proposer=object())


def test_what_could_never_fit_with_its_drafts_is_refused(tiny, speculate):
    """Otherwise it would wait for blocks for ever."""
    engine = tiny.engine(
        num_blocks=6, block_size=4, max_model_len=60, speculative_config=speculate("greedy", 4)
    )
    fits = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    assert len(engine.generate([[5] * 5], fits)[0].token_ids) == 8
    with pytest.raises(
        ValueError,
        match="an answer of 9 do not fit the 12 tokens",  # 20, and room for 8 drafts
    ):
        engine.add_request("a", [5] * 5, SamplingParams(max_tokens=9))
