"""sampling.py against transformers' logits processors, float64 formulas, and statistics."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from phase2_attention_kvcache.model.logits_processors import apply_penalties
from phase2_attention_kvcache.model.sampling import BadLogitsError, Sampler, draw
from phase2_attention_kvcache.model.sampling_params import SamplingParams

VOCAB = 50
seeds = st.integers(0, 2**20)


def random_logits(seed, rows=1, vocab=VOCAB, spread=3.0):
    return spread * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def sample(logits, params, prompts=None, outputs=None, generators=None, eos=None):
    nothing = [[] for _ in params]
    return Sampler(eos).sample(
        logits, params, prompts or nothing, outputs or nothing, generators or [None] * len(params)
    )


def probabilities(logits, **knobs):
    return Sampler().probabilities(logits, [SamplingParams(**knobs)] * len(logits))


def close_to_border(values, border):
    """Whether rounding could decide on which side of the border a value lies."""
    return bool(((values - border).abs() < 1e-5).any())


# ---------------------------------------------------------------------- against transformers


def test_top_k_keeps_ties_as_transformers_does():
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0]])
    ours = probabilities(logits, top_k=2)
    assert (ours > 0).tolist() == [[False, True, True, True, True, False]]
    torch.testing.assert_close(ours, TopKLogitsWarper(2)(None, logits).softmax(-1))


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
def test_top_p_with_a_large_vocabulary(top_p, spread):
    """More tokens than the head that is looked at first: nearly flat rows take the long way, and agree, too."""
    logits = torch.cat((random_logits(1, 2, 3000, spread), random_logits(2, 1, 3000, 6.0)))
    ours, expected = probabilities(logits, top_p=top_p), TopPLogitsWarper(top_p)(None, logits).softmax(-1)
    # Rounding of a sum of 3,000 numbers may move the border by a token.
    assert ((ours > 0) != (expected > 0)).sum() <= 3
    torch.testing.assert_close(ours, expected, atol=2e-4, rtol=1e-3)
    held = logits.softmax(-1).masked_fill(ours == 0, 0)
    assert (held.sum(-1) >= top_p - 1e-5).all()
    least = held.masked_fill(held == 0, 2).amin(-1)
    assert (held.sum(-1) - least < top_p + 1e-5).all()  # one token fewer would not do


def test_top_p_ties_do_not_depend_on_order():
    """Documented: equals of the last token kept are kept. transformers would drop some of them by position."""
    probs = torch.tensor([[0.4, 0.2, 0.2, 0.2]])
    for order in ([0, 1, 2, 3], [3, 0, 2, 1], [1, 2, 3, 0]):
        ours = probabilities(probs[:, order].log(), top_p=0.5)
        torch.testing.assert_close(ours, probs[:, order])
    assert probabilities(probs.log(), top_p=0.4).tolist() == [[1, 0, 0, 0]]


outputs = st.lists(st.integers(0, VOCAB - 1), max_size=40)


@given(seeds, st.floats(-2, 2), st.floats(-2, 2), st.floats(0.5, 2), outputs)
@settings(max_examples=50)
def test_presence_and_frequency_count_the_output_only(seed, presence, frequency, repetition, output):
    row = random_logits(seed)[0]
    expected = row.double().numpy().copy()
    prompt = [0, 1, 2]
    for token in {*prompt, *output}:  # repetition first, then the other two
        expected[token] *= 1 / repetition if expected[token] > 0 else repetition
    for token in range(VOCAB):
        expected[token] -= frequency * output.count(token) + presence * (token in output)
    p = SamplingParams(presence_penalty=presence, frequency_penalty=frequency, repetition_penalty=repetition)
    apply_penalties(row, p, prompt, output)
    np.testing.assert_allclose(row.numpy(), expected, atol=1e-4)


@given(
    seed=seeds,
    temperature=st.just(1.0) | st.floats(0.05, 4),
    min_p=st.just(0.0) | st.floats(0.001, 1),
    top_k=st.sampled_from([0, -1]) | st.integers(1, VOCAB + 5),
    top_p=st.just(1.0) | st.floats(0.01, 0.99),
)
@settings(max_examples=150)
def test_one_knob_or_all_in_vllms_order(seed, temperature, min_p, top_k, top_p):
    """Each is left out half of the time."""
    logits = random_logits(seed, rows=2)
    expected = TemperatureLogitsWarper(temperature)(None, logits)
    if min_p:
        probs = expected.softmax(-1)
        assume(not close_to_border(probs / probs.amax(-1, keepdim=True), min_p) or min_p == 1)
        expected = MinPLogitsWarper(min_p)(None, expected)
    if top_k > 0:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1:
        assume(not close_to_border(expected.softmax(-1).sort(descending=True).values.cumsum(-1), top_p))
        expected = TopPLogitsWarper(top_p)(None, expected)
    ours = probabilities(logits, temperature=temperature, min_p=min_p, top_k=top_k, top_p=top_p)
    torch.testing.assert_close(ours, expected.softmax(-1), atol=1e-5, rtol=1e-3)


# ---------------------------------------------------------------------- greedy, bias, min_tokens


@given(seeds, st.integers(1, 6))
@settings(max_examples=30)
def test_greedy_is_argmax(seed, rows):
    logits = random_logits(seed, rows)
    expected = logits.argmax(-1).tolist()
    assert sample(logits, [SamplingParams(temperature=0)] * rows).token_ids == expected
    # The long way round gives the same: another request draws, and a penalty that changes nothing is set.
    mixed = [SamplingParams(temperature=0)] * rows + [SamplingParams(presence_penalty=1)]
    both = torch.cat((logits, logits[:1]))
    assert sample(both, mixed).token_ids[:rows] == expected
    cold = [SamplingParams(temperature=1e-9, top_k=3, min_p=0.5)] * rows
    assert sample(logits, cold).token_ids == expected


def test_logit_bias_comes_before_the_penalties():
    p = SamplingParams(logit_bias={0: 3.0}, repetition_penalty=2.0, presence_penalty=0.5)
    ours = Sampler().probabilities(torch.tensor([[1.0, 0.0]]), [p], [[0]], [[0]])
    torch.testing.assert_close(ours, torch.tensor([[(1 + 3) / 2 - 0.5, 0]]).softmax(-1))


def test_min_tokens_bans_the_ends_until_it_is_reached():
    logits = torch.tensor([[9.0, 8.0, 7.0, 1.0]])
    p = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=[1])
    assert sample(logits, [p], outputs=[[]], eos=0).token_ids == [2]
    assert sample(logits, [p], outputs=[[2]], eos=0).token_ids == [2]
    assert sample(logits, [p], outputs=[[2, 2]], eos=0).token_ids == [0]
    assert sample(logits, [p], outputs=[[2]], eos=[0, 2]).token_ids == [3]
    biased = SamplingParams(temperature=0, min_tokens=2, logit_bias={3: 0.5})
    assert sample(logits, [biased], outputs=[[2]], eos=0).token_ids == [1]
    assert sample(logits, [biased], outputs=[[2, 2]], eos=0).token_ids == [0]
    with pytest.raises(BadLogitsError, match=r"row 0 .*every token that is left is banned"):
        sample(logits, [p], eos=[0, 2, 3])


def test_only_allowed_tokens_are_picked():
    logits = random_logits(3, rows=2)
    params = [
        SamplingParams(temperature=0, allowed_token_ids=[7, 3]),
        SamplingParams(allowed_token_ids=[9], seed=1),
    ]
    wanted = max((3, 7), key=lambda token: logits[0, token])
    assert sample(logits, params).token_ids == [wanted, 9]


@given(seed=seeds)
def test_bad_words_never_come_whole(seed):
    """Their last token is banned exactly where the tokens before it have just been written."""
    words = {"ab": [1, 2], " ab": [4, 2], "c": [3], " c": [0, 3]}
    params = SamplingParams(temperature=0, bad_words=["ab", " c"]).fitted(6, words.__getitem__)
    assert params.bad_words_token_ids == ((1, 2), (4, 2), (3,))  # " c" is not one token, as "c" is
    logits = random_logits(seed, vocab=6)
    for output, banned in (([], [3]), ([1], [2, 3]), ([2, 4], [2, 3]), ([4, 0], [3])):
        left = logits.clone()
        left[0, banned] = -math.inf
        assert sample(logits, [params], outputs=[output]).token_ids == left.argmax(-1).tolist()


def test_logits_are_left_alone():
    logits = random_logits(0, rows=2)
    kept = logits.clone()
    cuts = dict(top_p=0.5, top_k=4, min_p=0.1)
    params = [
        SamplingParams(logit_bias={1: 5.0}, repetition_penalty=2, min_tokens=3, **cuts),
        SamplingParams(temperature=0, frequency_penalty=1, logprobs=2),
    ]
    sample(logits, params, [[1], [2]], [[3], [4]], eos=0)
    Sampler(0).probabilities(logits, params, [[1], [2]], [[3], [4]])
    assert torch.equal(logits, kept)


# ---------------------------------------------------------------------- drawing


def test_draws_follow_the_probabilities():
    logits, draws, knobs = random_logits(5, vocab=12, spread=1.2), 20_000, dict(top_k=8, temperature=1.7)
    expected = probabilities(logits, **knobs)[0].double().numpy()
    torch.manual_seed(0)
    ids = sample(logits.expand(draws, -1), [SamplingParams(**knobs)] * draws).token_ids
    counts = np.bincount(ids, minlength=12)
    assert counts[expected == 0].sum() == 0
    likely = expected > 0
    p_value = chisquare(counts[likely], draws * expected[likely] / expected[likely].sum()).pvalue
    assert p_value > 0.001


def test_a_token_of_probability_zero_is_never_drawn():
    """Not even by the extreme darts, 0 and the largest number below 1."""

    last_dart = 1 - 2**-53
    even, odd = [[0.0, 0.5, 0.0, 0.5, 0.0]], [[0.0, 0.3, 0.0, 0.6999, 0.0]]  # odd: 1, but for rounding
    for value, row, expected in (
        (0.0, even, 1), (0.4999, even, 1), (0.5, even, 3), (last_dart, even, 3), (last_dart, odd, 3),
    ):  # fmt: skip
        dart = torch.tensor([value], dtype=torch.float64)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "rand", lambda n, dart=dart, **_: dart.expand(n))
            assert draw(torch.tensor(row), [None]).tolist() == [expected]


def test_a_point_finds_its_token_among_100_000():
    """Their widths are added up in float64: in float16 the third would be 54 tokens off."""
    tokens = [12_345, 50_000, 87_654]
    found = draw(torch.full((3, 100_000), 1e-5), [(token + 0.5) / 100_000 for token in tokens])
    assert found.tolist() == tokens


def run_alone(logits_by_step, p, prompt):
    g, output = p.make_generator(), []
    for logits in logits_by_step:
        output += sample(logits[None], [p], [prompt], [output], [g]).token_ids
    return output


@given(seeds, st.randoms(use_true_random=False))
@settings(max_examples=15)
def test_a_seeded_request_gets_the_same_tokens_in_any_company(seed, chance):
    steps = 6
    knobs = [{}, {"top_k": 8}, {"top_k": 2}, {"top_p": 0.9, "temperature": 1.2}, {"min_p": 0.05}]
    knobs += [{"presence_penalty": 1.0}, {"temperature": 0}]
    requests = [SamplingParams(seed=seed + i, **k) for i, k in enumerate(knobs)]
    logits = random_logits(seed, rows=steps * len(requests)).view(steps, len(requests), VOCAB)
    alone = [run_alone(logits[:, i], p, [i]) for i, p in enumerate(requests)]

    generators = [p.make_generator() for p in requests]
    outputs = [[] for _ in requests]
    for step in range(steps):
        rows = list(range(len(requests)))
        chance.shuffle(rows)  # another order in every step, and strangers in between
        strangers = chance.randint(0, 3)
        batch = torch.cat((random_logits(chance.randint(0, 999), strangers), logits[step, rows]))
        other = SamplingParams(temperature=2)
        picked = sample(
            batch,
            [other] * strangers + [requests[i] for i in rows],
            [[]] * strangers + [[i] for i in rows],
            [[]] * strangers + [outputs[i] for i in rows],
            [None] * strangers + [generators[i] for i in rows],
        )
        for i, token in zip(rows, picked.token_ids[strangers:], strict=True):
            outputs[i].append(token)
    assert outputs == alone


def test_seeds():
    logits = torch.zeros(20, 1000)
    once, again, other = (run_alone(logits, SamplingParams(seed=s), []) for s in (1, 1, 2))
    assert once == again != other
    assert SamplingParams().make_generator() is None
    answers = SamplingParams(seed=1, n=3, prompt_logprobs=2)
    assert [answers.for_answer(i).seed for i in range(3)] == [1, 2, 3]
    assert [answers.for_answer(i).prompt_logprobs for i in range(3)] == [2, None, None]
    assert answers.for_answer(1).n == 1 and answers.n == 3
    assert SamplingParams(seed=2**64 - 1).for_answer(1).make_generator().initial_seed() == 0


# ---------------------------------------------------------------------- log probabilities


def test_logprobs_are_the_models_own():
    logits = random_logits(9, rows=3)
    params = [
        SamplingParams(temperature=0, logprobs=3, logit_bias={7: 100}),  # picks 7, whatever the model says
        SamplingParams(),
        SamplingParams(temperature=0, logprobs=0),
    ]
    result = sample(logits, params)
    exact = logits.double().log_softmax(-1)
    first, second, third = result.logprobs
    best = exact[0].topk(3).indices.tolist()
    assert list(first) == [7, *best]
    assert all(first[i] == pytest.approx(exact[0, i].item(), abs=1e-5) for i in first)
    assert second is None
    assert third == pytest.approx({int(exact[2].argmax()): exact[2].max().item()}, abs=1e-5)
    assert len(sample(logits, [SamplingParams(temperature=0, logprobs=9999)] * 3).logprobs[0]) == VOCAB


# ---------------------------------------------------------------------- broken logits


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("knobs", [{"temperature": 0}, {}, {"top_p": 0.5, "presence_penalty": 1.0}])
def test_broken_logits_name_their_rows_and_spare_the_others(broken, knobs):
    logits = random_logits(0, rows=4)
    logits[1, 3] = logits[3, 0] = broken
    params = [SamplingParams(**knobs, seed=i) for i in range(4)]
    generators = [p.make_generator() for p in params]
    with pytest.raises(BadLogitsError, match="broke down"):
        probabilities(logits, **knobs)
    with pytest.raises(BadLogitsError, match="rows 1, 3 of the logits") as error:
        sample(logits, params, generators=generators)
    assert error.value.rows == [1, 3]
    assert isinstance(error.value, ValueError)
    # Without these rows it goes on, and no other chance has moved.
    rest = [0, 2]
    others = [params[i] for i in rest]
    ours = sample(logits[rest], others, generators=[generators[i] for i in rest])
    fresh = sample(logits[rest], others, generators=[p.make_generator() for p in others])
    assert ours.token_ids == fresh.token_ids


def test_minus_infinity_is_a_ban():
    logits = torch.full((1, 5), -math.inf)
    logits[0, 2] = 1.0
    assert sample(logits, [SamplingParams(top_k=3, top_p=0.9)]).token_ids == [2]


@pytest.mark.parametrize(
    ("logits", "params", "message"),
    [
        (torch.zeros(5), [SamplingParams()], r"\[requests, vocabulary\] is needed"),
        (torch.zeros(2, 5), [SamplingParams()], "1 params for 2 rows"),
        (torch.zeros(1, 5), [SamplingParams(logit_bias={5: 1.0})], "logit_bias holds the token 5: .* 0 to 4"),
        (torch.zeros(1, 5), [SamplingParams(stop_token_ids=[9])], "stop_token_ids holds the token 9"),
    ],
)
def test_what_does_not_fit(logits, params, message):
    with pytest.raises(ValueError, match=message):
        sample(logits, params)


# ---------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("n", [0, -1, 1.5, "2", None, True]),
        ("temperature", [-0.1, math.nan, math.inf, "warm", None]),
        ("top_p", [0, 0.0, -0.1, 1.01, math.nan]),
        ("top_k", [-2, 1.5, None]),
        ("min_p", [-0.01, 1.01, math.nan]),
        ("presence_penalty", [-2.1, 2.1, math.nan]),
        ("frequency_penalty", [-2.1, 2.1, math.nan]),
        ("repetition_penalty", [0, 0.0, -1, math.nan, math.inf, 1e-320, 1e-21, 1e21]),
        ("max_tokens", [0, -1, 2.5]),
        ("min_tokens", [-1, 17, 1.0]),
        ("seed", [1.5, "x", 2**64]),
        ("logprobs", [-1, 0.5]),
        ("prompt_logprobs", [-1]),
        ("cache_salt", [3, b"salt"]),
        ("stop", ["", ["a", ""], [3], 3]),
        ("stop_token_ids", [[-1], ["a"], 5, [1.0]]),
        ("allowed_token_ids", [[], [-1]]),
        ("logit_bias", [{"a": 1.0}, {-1: 1.0}, {1: 101}, {1: math.nan}, {1: -math.inf}, {1: None}, [1]]),
    ],
)
def test_every_bad_parameter(field, bad):
    for value in bad:
        with pytest.raises(ValueError, match=field) as error:
            SamplingParams(**{field: value})
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="n is 3 at temperature 0"):
        SamplingParams(n=3, temperature=0)


def test_another_vocabulary_or_end_of_text_has_masks_of_its_own():
    p = SamplingParams(temperature=0, allowed_token_ids=[0, 1, 2], min_tokens=1)
    logits = torch.tensor([[9.0, 8.0, 7.0, 99.0]])
    assert [sample(logits, [p], eos=eos).token_ids for eos in (0, 1, [0, 1])] == [[1], [0], [2]]
    assert sample(logits[:, :3], [p], eos=0).token_ids == [1]
    with pytest.raises(ValueError, match="allowed_token_ids holds the token 2"):
        sample(logits[:, :2], [p], eos=0)
