"""Whatever is drafted, the answers are distributed as without drafts: counted, against exact probabilities."""

from collections import Counter

import pytest
import torch
from scipy.stats import chisquare

from phase2_attention_kvcache.model.sampling import Sampler
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase4_scheduler.engine.request import Request
from phase4_scheduler.features.speculation.rejection_sampler import RejectionSampler, Verified

VOCAB = 8


def p_value(counts, probs, number):
    """How likely counts so far from these probabilities are. Rare outcomes are taken together."""
    assert all(probs[x] > 0 for x in counts), "something came that has no probability"
    often = [x for x, p in probs.items() if number * p >= 5]
    rare = [x for x, p in probs.items() if 0 < number * p < 5]
    groups = [[x] for x in often] + ([rare] if rare else [])
    observed = [sum(counts[x] for x in group) for group in groups]
    wanted = torch.tensor([sum(probs[x] for x in group) for group in groups], dtype=torch.float64)
    return chisquare(observed, (wanted / wanted.sum() * number).numpy()).pvalue


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
    params, number = PARAMS[name], 5000
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
