"""Speculative decoding changes how many steps an answer takes, and nothing else about it."""

import copy
import dataclasses
import random
import warnings

import pytest
import torch

from labkit.errors import LabError
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase4_scheduler.features.speculation.draft_model import DraftModel
from tests.phase4_scheduler.engine.test_engine import PREEMPT, SETTINGS, serve

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
NGRAM = dict(method="ngram", prompt_lookup_min=1, prompt_lookup_max=3)


@pytest.fixture(scope="session")
def small_model(tiny, tmp_path_factory):
    """A model that often agrees with `tiny`: its weights, a little changed."""
    torch.manual_seed(3)
    model = copy.deepcopy(tiny.reference)
    with torch.no_grad():
        for weights in model.parameters():
            weights += 0.02 * torch.randn_like(weights)
    folder = tmp_path_factory.mktemp("small_model")
    model.save_pretrained(folder)
    return dataclasses.replace(tiny, folder=folder, reference=model)


@pytest.fixture
def speculate(small_model):
    """By name, the settings of speculative decoding with k drafts."""

    def make(name, k):
        if name == "ngram":
            return NGRAM | dict(num_speculative_tokens=k)
        return dict(model=small_model.folder, num_speculative_tokens=k, draft_sample_method=name)

    return make


def stats(engine):
    return engine.core.spec_decoding_stats


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


@pytest.mark.parametrize("name", ["block of 1", "budget of 5", "tight, swap", "priority"])
def test_a_draft_model_drafts_what_it_would_without_a_cache(
    name, tiny, small_model, make_prompts, speculate, monkeypatch
):
    """Prefix hits, preemption, swaps and rejected drafts leave nothing wrong in its blocks."""
    draft, drafted = DraftModel.draft, []

    def noting(self, inputs):
        texts = [list(given.token_ids) for given in inputs]
        found = draft(self, inputs)
        drafted.extend((text, new.token_ids) for text, new in zip(texts, found, strict=True) if new.token_ids)
        return found

    monkeypatch.setattr(DraftModel, "draft", noting)
    settings = SETTINGS[name] | dict(max_num_seqs=8, max_model_len=100)
    engine = tiny.engine(**settings, speculative_config=speculate("greedy", 3))
    params = [SamplingParams(max_tokens=10, n=1 + i % 2, seed=i, ignore_eos=True) for i in range(12)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a drafter that fails only warns
        serve(engine, make_prompts(12, 400, seed=2), params)
    assert len(drafted) > 50
    small_model.assert_greedy(*zip(*drafted))


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


THREE = dict(num_speculative_tokens=3)
LOOKUP = THREE | dict(method="ngram")
DRAFT = THREE | dict(model="tales-draft")


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (dict(method="ngram"), "num_speculative_tokens is missing: give 1 or more"),
        (THREE, "method is None: use ngram, draft_model or custom"),
        (THREE | dict(method="eagle"), "method is 'eagle': use ngram"),
        (THREE | dict(method="draft_model"), "method draft_model needs a model"),
        (THREE | dict(method="custom"), "method is 'custom': give the engine your own"),
        (LOOKUP | dict(num_speculative_tokens=0), "num_speculative_tokens is 0: it must be a whole number, 1 or above"),
        (LOOKUP | dict(num_speculative_tokens=128), "num_speculative_tokens is 128, and a request holds at most 128"),
        (LOOKUP | dict(prompt_lookup_min=4, prompt_lookup_max=2), "prompt_lookup_min is 4, prompt_lookup_max 2: the first must not"),
        (LOOKUP | dict(lookup=3), "unknown field 'lookup': it has num_spec"),
        (LOOKUP | DRAFT, "model belongs to the method draft_model, and method is ngram: leave one out"),
        (DRAFT | dict(prompt_lookup_max=3), "prompt_lookup_max belongs to the method ngram, and method is draft_model"),
        (DRAFT | dict(draft_sample_method="beam"), "draft_sample_method is 'beam': use greedy or probabilistic"),
        (DRAFT, "has a vocabulary of .* tokens, the model one of 400"),
        (DRAFT | dict(model="nowhere"), "nowhere"),
        (5, "speculative_config is 5: give a dict"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(given, complaint, tiny):
    with pytest.raises((ValueError, LabError), match=complaint):
        tiny.engine(speculative_config=given)


def test_what_does_not_fit_is_refused(tiny, speculate):
    with pytest.raises(ValueError, match="a proposer of your own needs speculative_config"):
        tiny.engine(proposer=object())
    with pytest.raises(
        ValueError, match="max_num_batched_tokens is 3: a request with 2 draft tokens needs 4"
    ):
        tiny.engine(max_num_batched_tokens=3, speculative_config=speculate("greedy", 2))
    # A request that would wait for blocks for ever: 20 tokens fit, and 8 of them are room for drafts.
    small = dict(num_blocks=6, block_size=4, max_model_len=60)
    engine = tiny.engine(**small, speculative_config=speculate("greedy", 4))
    fits = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    assert len(engine.generate([[5] * 5], fits)[0].token_ids) == 8
    with pytest.raises(ValueError, match="an answer of 9 do not fit the 12 tokens"):
        engine.add_request("a", [5] * 5, SamplingParams(max_tokens=9))
