"""Guesses: the n-gram proposer against vLLM's own function, and proposers that misbehave."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase4_scheduler.features.speculation.proposers import NgramProposer

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def test_ngrams_are_those_of_vllm():
    """10,000 texts, random and hostile (periods, Fibonacci words, single tokens, almost-repeats), and what
    `_find_longest_matched_ngram_and_propose_tokens` of vLLM 0.32 answered: [text, min, max, drafts wanted, answer]."""
    with gzip.open(Path(__file__).parent / "vllm_0_32_ngram.json.gz", "rt") as file:
        rows = json.load(file)
    for text, least, most, wanted, answer in rows:
        assert NgramProposer(least, most).propose(text, wanted) == answer, (text, least, most, wanted)
    assert (len(rows), sum(bool(row[-1]) for row in rows)) == (10_000, 3322)


def fail(token_ids, num_drafts):
    raise RuntimeError("no idea")


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (fail, r"the proposer failed \(RuntimeError: no idea\): request 'request-1' goes on without"),
        (lambda t, k: [400], r"the proposer proposed 400 \(token ids are 0 to 399\)"),
        (lambda t, k: [-1], r"proposed -1 "),
        (lambda t, k: [True], r"proposed True "),
        (lambda t, k: None, r"the proposer failed \(TypeError"),
    ],
)
def test_a_bad_proposer_costs_its_drafts_and_nothing_else(answer, complaint, tiny):
    prompts = [[5, 6, 7], [8, 9]]
    wanted = [o.token_ids for o in tiny.engine().generate(prompts, GREEDY)]
    config = dict(method="custom", num_speculative_tokens=3)
    engine = tiny.engine(speculative_config=config, proposer=SimpleNamespace(propose=answer))
    with pytest.warns(UserWarning, match=complaint):
        assert [o.token_ids for o in engine.generate(prompts, GREEDY)] == wanted


def test_a_proposer_of_ones_own_is_asked_for_what_is_of_use(tiny):
    """It knows the answers: all its drafts stand, and no step is wasted."""
    prompts = [[5, 6, 7], [8, 9]]
    answers = [o.token_ids for o in tiny.engine().generate(prompts, GREEDY)]
    asked = []

    def know(token_ids, num_drafts):
        asked.append(num_drafts)
        whole = next(p + a for p, a in zip(prompts, answers) if token_ids[:2] == p[:2])
        return whole[len(token_ids) :] + [0] * 99  # more than wanted is fine

    config = dict(method="custom", num_speculative_tokens=3)
    engine = tiny.engine(speculative_config=config, proposer=SimpleNamespace(propose=know))
    assert [o.token_ids for o in engine.generate(prompts, GREEDY)] == answers
    # 1 token, then 4, 4, and of the 3 that are left 2 are drafts and the last one comes by itself.
    assert engine.core.num_steps == 4
    assert asked == [3] * 4 + [2] * 2
    counted = engine.core.spec_decoding_stats
    assert (counted.num_drafts, counted.num_draft_tokens, counted.num_accepted_tokens) == (6, 16, 16)
    assert counted.num_accepted_tokens_per_pos == [6, 6, 4]
