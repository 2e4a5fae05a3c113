"""Asynchronous steps give the tokens of synchronous ones, on a runner that keeps its tokens back as a device does."""

import dataclasses
import random

import pytest
import torch

from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase4_scheduler.features.structured_output import StructuredSamplingParams
from tests.phase4_scheduler.engine.test_engine import serve
from tests.phase4_scheduler.features.test_faults import DRAWN, GREEDY, drain

POISON = 13  # no other prompt holds this token


@pytest.fixture
def delaying(tiny):
    """An engine with asynchronous steps, and a log of what its runner does: ("start", step) and ("read", step)."""

    def make(**settings):
        engine, log = tiny.engine(async_scheduling=True, **settings), []
        runner = engine.core.runner
        start, to_host = runner.start, runner.to_host

        def logged_start(output):
            log.append(("start", sum(what == "start" for what, _ in log)))
            return start(output)

        def delayed(tokens):
            number, kept, read = log[-1][1], tokens, to_host(tokens.clone())

            def read_late():
                log.append(("read", number))
                assert (kept == runner._sampled).all() or ("start", number + 1) in log
                return read()

            return read_late

        runner.start, runner.to_host = logged_start, delayed
        return engine, log

    return make


@pytest.mark.parametrize("seed", range(8))
def test_tokens_equal_those_of_synchronous_steps(tiny, delaying, make_prompts, seed):
    rng = random.Random(seed)
    prompts = make_prompts(12, 400, (1, 40), seed)
    kinds = [
        SamplingParams(temperature=0, ignore_eos=True),
        SamplingParams(temperature=0.8, seed=3, ignore_eos=True),
        SamplingParams(temperature=1.2, top_p=0.8, top_k=20, seed=4),
        SamplingParams(temperature=0, stop_token_ids=list(range(0, 400, 9))),
    ]
    if seed % 2:  # what needs the answer on the host
        kinds += [
            SamplingParams(temperature=0, repetition_penalty=1.3),
            SamplingParams(temperature=0, logprobs=2, min_tokens=4),
            SamplingParams(temperature=0, prompt_logprobs=1),
        ]
    params = [dataclasses.replace(rng.choice(kinds), max_tokens=rng.randint(4, 25)) for _ in prompts]
    settings = dict(
        num_blocks=rng.choice([10, 12, 60]), block_size=8, max_num_seqs=rng.choice([3, 8]),
        max_num_batched_tokens=rng.choice([16, 64]), policy=rng.choice(["fcfs", "priority"]), max_model_len=70,
        enable_prefix_caching=rng.random() < 0.7,
    )  # fmt: skip
    engine, log = delaying(**settings)
    assert serve(engine, prompts, params, seed) == serve(tiny.engine(**settings), prompts, params, seed)
    overlapped = sum(
        log[i - 1] == ("start", step + 1) for i, (what, step) in enumerate(log) if what == "read"
    )
    assert overlapped > (0 if seed % 2 else 15)


def test_a_structured_answer_is_sampled_when_the_answer_so_far_is_known(tiny, delaying):
    wanted = StructuredSamplingParams(
        temperature=0, max_tokens=20, structured_outputs={"choice": ["the king", "the queen"]}
    )
    grammars = dict(structured_tokenizer=tiny.tokenizer)
    answers = [
        [output.text for output in engine.generate(["Once upon a time", "There was a"], [wanted, GREEDY])]
        for engine in (tiny.engine(**grammars), delaying(**grammars)[0])
    ]
    assert answers[0] == answers[1] and answers[0][0] in ("the king", "the queen")


@pytest.mark.parametrize("params", [GREEDY, DRAWN])
@pytest.mark.parametrize("breaks", ["forward", "logits"])
def test_a_request_that_breaks_its_step_ends_alone(
    breaks, params, tiny, delaying, make_prompts, after_forward
):
    """Its tokens raise as the step starts, or their logits are not finite, which is told when the step is read."""
    prompts = [[t for t in p if t != POISON] or [1] for p in make_prompts(6, 400)]
    right = [output.token_ids for output in tiny.engine().generate(prompts, params)]
    engine, _ = delaying()
    runner = engine.core.runner

    def burn(token_ids, hidden):
        if POISON in token_ids:
            raise RuntimeError("this token burns")

    def spoiled(sample):
        @torch.inference_mode()
        def spoil(logits, requests):
            for row, request in zip(logits, requests, strict=True):
                if request.request_id == "bad" and len(request.output_token_ids) >= 2:
                    row.fill_(float("nan"))
            return sample(logits, requests)

        return spoil

    if breaks == "forward":
        after_forward(engine, burn)
    else:
        runner.pick, runner.next_tokens = spoiled(runner.pick), spoiled(runner.next_tokens)
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), prompt, params)
    early = [engine.step() for _ in range(4)]
    engine.add_request("bad", [5, POISON], params)
    with pytest.warns(UserWarning, match="computed alone"):
        got, errors = drain(engine)
    assert list(errors) == ["bad"]
    assert ("burns" if breaks == "forward" else "logits") in errors["bad"]
    for i, tokens in enumerate(right):
        before = [t for outputs in early for o in outputs if o.request_id == str(i) for t in o.token_ids]
        assert before + got[str(i)][0] == tokens
