"""Whatever is drafted, the answers are distributed as without drafts: counted, against exact probabilities."""

from collections import Counter

import pytest
import torch
from scipy.stats import chisquare

from phase2_attention_kvcache.model.sampling import Sampler, draw
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase4_scheduler.engine.request import Request
from phase4_scheduler.features.speculation.rejection_sampler import RejectionSampler, Verified, verify_drafts

VOCAB = 8
DRAWS = 100_000


def resamples_from_p(p, q, drafts):
    """The classical mistake: what is rejected is drawn anew from p, and not from max(p - q, 0)."""
    tokens = []
    for j, draft in enumerate(drafts):
        if torch.rand(()) >= p[j, draft] / q[j, draft]:
            return [*tokens, *draw(p[j][None], [None])]
        tokens.append(draft)
    return [*tokens, *draw(p[-1][None], [None])]


def p_value(counts, probs, number):
    """How likely counts so far from these probabilities are. Rare outcomes are taken together."""
    assert all(probs[x] > 0 for x in counts), "something came that has no probability"
    often = [x for x, p in probs.items() if number * p >= 5]
    rare = [x for x, p in probs.items() if 0 < number * p < 5]
    groups = [[x] for x in often] + ([rare] if rare else [])
    observed = [sum(counts[x] for x in group) for group in groups]
    wanted = torch.tensor([sum(probs[x] for x in group) for group in groups], dtype=torch.float64)
    return chisquare(observed, (wanted / wanted.sum() * number).numpy()).pvalue


def pairs_of(verify, p_first, p_second, q_first, q_second, number):
    """The first two tokens of many answers: drafts are drawn from q, verified, and what is missing is drawn from p."""
    first = torch.multinomial(q_first, number, replacement=True)
    second = torch.multinomial(q_second[first], 1).flatten()
    counts = Counter()
    for x, y in zip(first.tolist(), second.tolist(), strict=True):
        p = torch.stack([p_first, p_second[x], p_second[y]])
        tokens = verify(p, torch.stack([q_first, q_second[x]]), [x, y])
        if len(tokens) == 1:  # the next step of the model
            tokens += draw(p_second[tokens[0]][None], [None])
        counts[tuple(tokens[:2])] += 1
    return counts


@pytest.mark.parametrize(
    ("seed", "number"), [(1, DRAWS // 5), pytest.param(2, DRAWS, marks=pytest.mark.proof)]
)
def test_pairs_of_tokens_come_with_their_exact_probabilities(seed, number):
    """p and q differ, p has zeros, q has zeros. And the test can tell: the classical mistake fails it with a fifth of
    the draws."""
    torch.manual_seed(seed)
    p_first = (2 * torch.randn(VOCAB)).softmax(-1)
    p_second = (2 * torch.randn(VOCAB, VOCAB)).softmax(-1)
    p_first[3], p_second[:, 5] = 0, 0
    p_first, p_second = p_first / p_first.sum(), p_second / p_second.sum(-1, keepdim=True)
    q_first = (2 * torch.randn(VOCAB)).softmax(-1)
    q_second = (2 * torch.randn(VOCAB, VOCAB)).softmax(-1)
    q_second[:, 2] = 0
    q_second = q_second / q_second.sum(-1, keepdim=True)
    exact = {(x, y): (p_first[x] * p_second[x, y]).item() for x in range(VOCAB) for y in range(VOCAB)}
    right = pairs_of(verify_drafts, p_first, p_second, q_first, q_second, number)
    assert p_value(right, exact, number) > 0.001
    with pytest.raises(AssertionError):
        wrong = pairs_of(resamples_from_p, p_first, p_second, q_first, q_second, number // 5)
        assert p_value(wrong, exact, number // 5) > 0.001


PARAMS = {
    "plain": SamplingParams(),
    "cold": SamplingParams(temperature=0.5),
    "top-k": SamplingParams(top_k=3),
    "top-p": SamplingParams(top_p=0.7),
    "penalties": SamplingParams(frequency_penalty=1.5, repetition_penalty=1.4),
}


@pytest.mark.parametrize("drawn", [False, True], ids=["chosen", "drawn"])
@pytest.mark.parametrize("name", PARAMS)
def test_each_rows_tokens_are_drawn_from_what_the_sampler_says(name, drawn):
    """A step of many requests, with two drafts each: what stands or comes in place of the first draft, and of the second
    where the first stood. With penalties the second place depends on the first draft."""
    torch.manual_seed(4)
    params, number = PARAMS[name], DRAWS // 20
    logits = 1.5 * torch.randn(3, VOCAB)
    q = (1.5 * torch.randn(2, VOCAB)).softmax(-1)
    sampler = Sampler()
    step, drafts = [], torch.multinomial(q, number, replacement=True).T.tolist()
    for own in drafts:
        own = own if drawn else [1, 4]
        step.append(Verified(Request("r", [6, 1], params), own, q if drawn else None))
    answers = RejectionSampler(sampler).sample(logits.repeat(number, 1), step)
    assert all(1 <= len(tokens) <= 3 for tokens, _ in answers)
    place = sampler.probabilities(logits[:1], [params], [[6, 1]], [[]])[0]
    firsts = Counter(tokens[0] for tokens, _ in answers)
    assert p_value(firsts, dict(enumerate(place.tolist())), number) > 0.001
    stood = [tokens for tokens, _ in answers if len(tokens) > 1]
    best = Counter(tokens[0] for tokens in stood).most_common(1)[0][0]
    seconds = Counter(tokens[1] for tokens in stood if tokens[0] == best)
    place = sampler.probabilities(logits[1:2], [params], [[6, 1]], [[best]])[0]
    assert seconds.total() > 100
    assert p_value(seconds, dict(enumerate(place.tolist())), seconds.total()) > 0.001


def test_what_cannot_be_is_never_accepted_and_what_is_certain_always():
    p = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])
    q = torch.tensor([[0.5, 0.5, 0.0]])
    assert all(verify_drafts(p, q, [0]) == [1] for _ in range(50))
    assert all(verify_drafts(p, q, [1])[0] == 1 and len(verify_drafts(p, q, [1])) == 2 for _ in range(50))
    # The bonus token is from the last row.
    assert all(1 not in verify_drafts(p, q, [1])[1:] for _ in range(50))
