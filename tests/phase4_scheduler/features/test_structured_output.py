"""Every answer matches what was asked for, with random weights, beside every other feature; and nothing else changes."""

import json
import random
import re
import sys
import threading
import time
from collections import Counter
from types import SimpleNamespace

import jsonschema
import numpy as np
import pytest
import torch

from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase3_paged_attention.paging import BlockManager
from phase4_scheduler.engine import LLMEngine, Scheduler, SchedulerConfig
from phase4_scheduler.features.structured_output import (
    GrammarCompiler,
    StructuredOutputsParams,
    StructuredSamplingParams,
    grammar,
)
from tests.phase4_scheduler.features.speculation.test_rejection_sampler import p_value

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "pets": {"type": "array", "maxItems": 2, "items": {"enum": ["cat", "dog", None]}},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TAG = {"structures": [{"begin": "<f=a>", "schema": {"const": 7}, "end": "</f>"}], "triggers": ["<f="]}
# What is asked for, and how an answer that has ended is checked by others: re, jsonschema, or by eye.
ASKED = {
    "choice": (dict(choice=["yes", 'no "no"', "peut-être", "日本"]), lambda t: t in ("yes", 'no "no"', "peut-être", "日本")),
    "regex": (dict(regex=r"[a-c]{2,4}-\d{1,3}(é|\n)?"), lambda t: re.fullmatch(r"[a-c]{2,4}-\d{1,3}(é|\n)?", t)),
    "schema": (dict(json=PERSON), lambda t: matches(t, PERSON)),
    "schema as text": (dict(json=json.dumps(PERSON)), lambda t: matches(t, PERSON)),
    "schema true": (dict(json=True), lambda t: matches(t, True)),
    "object": (dict(json_object=True), lambda t: isinstance(json.loads(t), dict)),
    "compact": (dict(json=PERSON, disable_any_whitespace=True), lambda t: matches(t, PERSON) and not re.search(r"\s", re.sub(r'"(\\.|[^"\\])*"', "", t))),
    "EBNF": (dict(grammar='root ::= "(" root ")" | [xy]'), lambda t: re.fullmatch(r"(\(*)[xy](\)*)", t) and t.count("(") == t.count(")")),
    "Lark": (dict(grammar='start: "a" NUMBER\nNUMBER: /[1-9][0-9]{0,2}/'), lambda t: re.fullmatch("a[1-9][0-9]{0,2}", t)),
    "tag": (dict(structural_tag=TAG), lambda t: all(part.startswith("a>7</f>") for part in t.split("<f=")[1:])),
}  # fmt: skip


def matches(text, schema):
    jsonschema.validate(json.loads(text), schema)
    return True


def asking(max_tokens=60, seed=None, n=1, logprobs=None, **constraint):
    common = dict(n=n, max_tokens=max_tokens, seed=seed, logprobs=logprobs)
    return StructuredSamplingParams(**common, structured_outputs=constraint)


@pytest.fixture
def make(tiny):
    def make(**settings):
        drafts = settings.pop("drafts", None)
        if drafts == "ngram":
            settings["speculative_config"] = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 2}  # fmt: skip
        elif drafts:  # the model itself, which draws: most drafts are accepted, until the grammar differs
            settings["speculative_config"] = {"model": str(tiny.folder), "num_speculative_tokens": 3, "draft_sample_method": drafts}  # fmt: skip
        settings = {"max_num_seqs": 16, "num_blocks": 300, "block_size": 4} | settings
        return tiny.engine(structured_tokenizer=tiny.tokenizer, **settings)

    return make


SETTINGS = {
    "plain": {},
    "small steps": {"max_num_batched_tokens": 17},
    "ngram drafts": {"drafts": "ngram"},
    "a draft model": {"drafts": "greedy"},
    "a draft model that draws": {"drafts": "probabilistic"},
    "preemption": {"num_blocks": 44},
    "swap": {"num_blocks": 44, "num_swap_blocks": 100, "preemption": "swap"},
    "a quantized cache": {"kv_cache_dtype": "fp8"},
    "priorities": {"policy": "priority"},
    "drafts and preemption": {"num_blocks": 44, "drafts": "ngram"},
}


def answers_of(engine):
    """Each kind of constraint three times, n = 2, log probabilities and a free request beside them."""
    params = [asking(24, 10 * i, logprobs=2, **asked) for i, (asked, _) in enumerate(ASKED.values())] * 3
    params += [asking(24, 5, n=2, **asked) for asked, _ in ASKED.values()]
    params += [SamplingParams(max_tokens=20, seed=3), SamplingParams(max_tokens=9, seed=4, prompt_logprobs=1)]
    prompts = [[7 + i, 8, 9, 7 + i, 8] for i in range(len(params))]
    return engine.generate(prompts, params)


def tokens_of(outputs):
    return [[answer.token_ids for answer in output.outputs] for output in outputs]


@pytest.fixture(scope="module")
def plain_tokens(tiny):
    engine = tiny.engine(max_num_seqs=16, num_blocks=300, block_size=4, structured_tokenizer=tiny.tokenizer)
    return tokens_of(answers_of(engine))


SIMPLE = [
    *({"type": kind} for kind in ("boolean", "null")), {"enum": ["a", "bc", 2.5, True, "é", {"x": [1]}]},
    *({"type": "integer", "minimum": low, "maximum": high} for low, high in ((-200, 7), (5, 5), (3, 1500))),
    {"type": "number", "minimum": 0, "maximum": 8}, {"type": "string", "minLength": 1, "maxLength": 2},
    {"type": "string", "pattern": "^[a-f]{1,5}$"}, {"type": "string", "format": "date"},
]  # fmt: skip


def random_schema(rng, depth=2):
    """A schema that llguidance, jsonschema and 40 tokens are enough for."""
    kind = rng.choice(["simple"] * 6 + ["object", "array", "anyOf"] * (depth > 0))
    if kind == "simple":
        return rng.choice(SIMPLE)
    if kind == "anyOf":
        return {kind: [random_schema(rng, depth - 1) for _ in range(2)]}
    if kind == "array":
        least = rng.randint(0, 1)
        return {
            "type": kind,
            "items": random_schema(rng, depth - 1),
            "minItems": least,
            "maxItems": least + 1,
        }
    names = rng.sample(["a", "b", "c d", "é", 'q"'], rng.randint(0, 3))
    properties = {name: random_schema(rng, depth - 1) for name in names}
    required = [name for name in names if rng.random() < 0.6]
    return {"type": kind, "properties": properties, "required": required, "additionalProperties": False}


def test_slow_masks_change_no_token_and_hold_up_no_other(make, plain_tokens, monkeypatch):
    """Made ahead in a thread: all of them, and one that takes long beside a free request."""
    monkeypatch.setattr(grammar, "SLOW", 0.0)
    assert tokens_of(answers_of(make())) == plain_tokens
    assert tokens_of(answers_of(make(num_blocks=44))) == plain_tokens
    source = StructuredOutputsParams(regex="a*").source
    assert make().core.compiler.submit(source).result().slow  # known before its first token
    look_ahead, may_go_on = GrammarCompiler.look_ahead, threading.Event()
    monkeypatch.setattr(GrammarCompiler, "look_ahead", lambda *args: may_go_on.wait(60) and look_ahead(*args))
    engine = make()
    engine.add_request("slow", [7, 8], asking(9, 3, regex="[a-c]{20}"))
    engine.add_request("free", [7, 9], SamplingParams(max_tokens=30, ignore_eos=True))
    ended = []
    while "free" not in ended:
        ended += [output.request_id for output in engine.step() if output.finished]
    assert ended == ["free"]
    may_go_on.set()
    while engine.has_unfinished_requests:
        ended += [output.request_id for output in engine.step() if output.finished]
    assert ended == ["free", "slow"]
    # Where another waits for its place, an engine with nothing to compute waits as well: it does not turn.
    monkeypatch.setattr(GrammarCompiler, "look_ahead", lambda *args: time.sleep(0.1) or look_ahead(*args))
    engine, steps = make(max_num_seqs=1), 0
    engine.add_request("slow", [7, 8], asking(9, 3, regex="[a-c]{20}"))
    engine.add_request("waits", [7, 9], SamplingParams(max_tokens=3, ignore_eos=True))
    while engine.has_unfinished_requests:
        engine.step()
        steps += 1
    assert steps < 300


@pytest.mark.parametrize(
    ("number", "most_unended"), [(120, 20), pytest.param(1000, 150, marks=pytest.mark.proof)]
)
def test_answers_to_many_schemas_are_valid(number, most_unended, make):
    """Some do not end: a number may have digits without end."""
    rng, engine = random.Random(number), make(max_num_seqs=64, num_blocks=2000)
    schemas = [random_schema(rng) for _ in range(number)]
    params = [asking(110, i, json=schema, disable_any_whitespace=True) for i, schema in enumerate(schemas)]
    ended = 0
    for schema, output in zip(schemas, engine.generate([[1 + i % 50] for i in range(number)], params)):
        assert output.error is None, output.error
        if output.outputs[0].finish_reason == "stop":
            ended += matches(output.outputs[0].text, schema)
    assert ended > number - most_unended


@pytest.mark.parametrize("name", SETTINGS)
def test_every_answer_matches_beside_every_other_feature(name, make, plain_tokens):
    engine = make(**SETTINGS[name])
    outputs = answers_of(engine)
    if name in ("small steps", "ngram drafts", "a draft model", "preemption", "swap"):
        assert tokens_of(outputs) == plain_tokens
    checks = [check for _, check in ASKED.values()] * 4
    assert [output.error for output in outputs] == [None] * len(outputs)
    num_ended = 0
    for output, check in zip(outputs, checks):
        for answer in output.outputs:
            if answer.finish_reason == "stop":
                assert check(answer.text), answer.text
                num_ended += 1
    assert num_ended > 25
    if "blocks" in str(SETTINGS[name]):
        assert sum(part.metrics.num_preemptions for output in outputs for part in output.outputs) > 0
    assert not engine.core.scheduler.compiling


# ---------------------------------------------------------------------- the distribution


def test_a_thread_that_reads_an_answer_holds_up_no_other(tiny):
    """A token takes a ms with many alternatives; with the GIL held, steps would wait for it."""
    compiler, usual = GrammarCompiler(tiny.tokenizer, 400, [399]), sys.getswitchinterval()
    others, stop = [0], []
    made = compiler.start(StructuredOutputsParams(regex="a*").source)
    made.fill = lambda *where: None
    (letter,) = tiny.tokenizer.encode("a")

    def work():
        while not stop:
            others[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        sys.setswitchinterval(60)  # the other thread runs only while a call has released the GIL
        before = others[0]
        compiler.look_ahead(made, [letter] * 2000)
        assert others[0] > before and made.num_read == 2000
    finally:
        sys.setswitchinterval(usual)
        stop.append(1)
        thread.join()


def allowed_by(tokenizer, choices, end):
    """By trying each token: those with which one of the choices can begin."""
    texts = [choice.encode() for choice in choices]
    names = enumerate(tokenizer.token_bytes)
    return [i for i, token in names if i != end and any(text.startswith(token) for text in texts)]


@pytest.mark.parametrize("drafts", [None, "probabilistic"])
def test_tokens_are_distributed_like_the_masked_softmax(drafts, make, tiny):
    choices, prompt, number = ["the cat", "he", "and so on", "wolf", "Once", "in"], [5, 6, 7], 1500
    allowed = allowed_by(tiny.tokenizer, choices, end=399)
    logits = tiny.logits([prompt])[0][-1]
    expected = logits[allowed].double().softmax(-1)
    assert len(allowed) > 8
    engine = make(drafts=drafts, max_num_seqs=64, num_blocks=2000)
    outputs = engine.generate([prompt] * number, [asking(8, choice=choices, logprobs=20)] * number)
    first = [output.outputs[0] for output in outputs]
    counts = Counter(answer.token_ids[0] for answer in first)
    assert p_value(counts, dict(zip(allowed, expected.tolist(), strict=True)), number) > 0.001
    if drafts is None:  # what is reported is what was drawn from
        reported = first[0].logprobs[0]
        for token, p in zip(allowed, expected.log().tolist(), strict=True):
            assert reported[token] == pytest.approx(p, abs=1e-3)
        assert all(p == -torch.inf for token, p in reported.items() if token not in allowed)


def test_masks_allow_what_trying_every_token_allows(tiny):
    compiler = GrammarCompiler(tiny.tokenizer, 410, [399])  # the model's table is padded
    texts = ["ab", "the end", "thé"]
    for written in ("", "t", "th", "the end"):
        grammar = compiler.start(StructuredOutputsParams(choice=texts).source)
        grammar.read(tiny.tokenizer.encode(written))
        rest = [text[len(written) :] for text in texts if text.startswith(written)]
        allowed = allowed_by(tiny.tokenizer, rest, end=399) + [399] * ("" in rest)
        bits = np.unpackbits(compiler.allowed([(grammar, [])]), bitorder="little")
        assert bits.nonzero()[0].tolist() == allowed


# ---------------------------------------------------------------------- drafts, ends and limits


def oracle(text, wrong):
    """Proposes what comes next in a text, and then what the grammar refuses."""
    return SimpleNamespace(propose=lambda ids, number: [*text[len(ids) - 1 :], wrong, wrong, wrong][:number])


def test_drafts_are_cut_where_the_grammar_refuses(make, tiny):
    only = "qzxjqzxjqz"  # no token holds two of these: there is one way to write it
    text, wrong = tiny.tokenizer.encode(only), tiny.tokenizer.encode("a")[0]
    config = {"method": "custom", "num_speculative_tokens": 3}
    engine = make(speculative_config=config, proposer=oracle(text, wrong))
    answer = engine.generate([[1]], [asking(choice=[only])])[0].outputs[0]
    stats = engine.core.spec_decoding_stats
    assert (answer.text, answer.finish_reason) == (only, "stop") and len(text) == len(only)
    assert stats.num_draft_tokens == stats.num_accepted_tokens > 0  # none of the wrong ones was ever verified


def test_a_proposer_may_propose_the_end(make, tiny):
    """Where the draft before the end is refused, the answer goes on in its grammar."""
    config = {"method": "custom", "num_speculative_tokens": 3}
    engine = make(speculative_config=config, proposer=oracle(tiny.tokenizer.encode("xa"), 399))
    outputs = engine.generate([[1]] * 20, [asking(seed=seed, regex="x(a|b)") for seed in range(20)])
    answers = {(output.outputs[0].text, output.outputs[0].finish_reason) for output in outputs}
    assert answers == {("xa", "stop"), ("xb", "stop")}


def test_a_stop_string_max_tokens_and_an_ignored_end(make):
    stops, ignores = (
        StructuredSamplingParams(max_tokens=30, seed=1, structured_outputs={"regex": regex}, **how)
        for regex, how in (("a{3}b{9}", dict(stop="b")), ("x", dict(ignore_eos=True)))
    )
    outputs = make().generate([[3]] * 3, [stops, asking(3, regex="a{99}"), ignores])
    stopped, cut, free = (output.outputs[0] for output in outputs)
    assert (stopped.text, stopped.stop_reason) == ("aaa", "b")
    assert set(cut.text) == {"a"} and cut.finish_reason == "length"
    assert free.text.startswith("x") and len(free.token_ids) == 30
    assert free.token_ids.count(399) < 25  # behind its end an answer is free, as in vLLM


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({}, "no constraint"),
        ({"regex": "a", "choice": ["b"]}, "regex and choice: give one of"),
        ({"regex": "[a-"}, "unclosed character class"),
        ({"regex": "(?=a)b"}, "look-ahead"),
        ({"regex": 7}, "7 is no text"),
        ({"json": {"type": "strin"}}, "strin"),
        ({"json": '{"type": '}, "JSONDecodeError"),
        ({"json": [1]}, "is no schema"),
        ({"json": {"$ref": "#/$defs/a"}}, "a"),
        ({"json_object": False}, "must be true"),
        ({"choice": []}, "at least one text"),
        ({"choice": "yes"}, "at least one text"),
        ({"choice": ["a", 1]}, "at least one text"),
        ({"grammar": "  "}, "empty"),
        ({"grammar": "start: foo"}, "foo"),
        ({"grammar": "root ::= " + "(" * 5000}, "structured_outputs: grammar"),
        ({"json": '{"items":' * 5000 + "{}" + "}" * 5000}, "structured_outputs: json"),
        ({"structural_tag": {"triggers": ["<"]}}, "structures"),
        ({"structural_tag": TAG | {"triggers": ["["]}}, "none of the triggers"),
        ({"color": "red"}, "unknown field 'color': it has json, regex"),
    ],
)  # fmt: skip
def test_a_wrong_grammar_is_one_clear_line(wrong, message):
    with pytest.raises(ValueError) as caught:
        StructuredSamplingParams(structured_outputs=wrong)
    text = str(caught.value)
    assert text.startswith("structured_outputs") and message in text and "\n" not in text and len(text) < 400


# ---------------------------------------------------------------------- while a grammar is compiled


def test_others_go_on_while_a_grammar_is_compiled_and_one_that_fails_ends_its_request_alone(
    make, monkeypatch
):
    engine, begin, start = make(), threading.Event(), GrammarCompiler.start

    def slow(self, source):
        begin.wait(60)
        if "bad" in source:
            raise ValueError("too complex")
        return start(self, source)

    monkeypatch.setattr(GrammarCompiler, "start", slow)
    for name in ("good", "bad", "gone"):
        engine.add_request(name, [5], asking(9, choice=[name]))
    free = engine.generate([[5]], [SamplingParams(max_tokens=5, ignore_eos=True)])[0]
    assert len(free.outputs[0].token_ids) == 5
    # Alone, they wait a moment and say nothing.
    assert not engine.step() and engine.core.scheduler.num_waiting == 3
    assert engine.abort("gone") and engine.core.scheduler.num_waiting == 2
    begin.set()
    texts, errors = {"good": "", "bad": ""}, {}
    with pytest.warns(UserWarning, match="each is computed alone"):
        while engine.has_unfinished_requests:
            for output in engine.step():
                texts[output.request_id] += output.outputs[0].text
                errors[output.request_id] = output.error
    assert texts == {"good": "good", "bad": ""} and errors["good"] is None and "too complex" in errors["bad"]


def test_engines_without_a_tokenizer_or_with_a_scheduler_of_ones_own(tiny):
    with pytest.raises(ValueError, match="structured_tokenizer"):
        tiny.engine().generate([[5]], [asking(choice=["a"])])
    scheduler = Scheduler(SchedulerConfig(), BlockManager(50, 4))
    engine = tiny.engine(scheduler=scheduler, structured_tokenizer=tiny.tokenizer)
    assert engine.generate([[5]], [asking(choice=["mine"])])[0].outputs[0].text == "mine"
    named = LLMEngine.from_pretrained("tales", "float32", "cpu", num_blocks=20, max_model_len=64)
    assert named.generate(["Yes or no?"], [asking(choice=["Yes", "No"])])[0].outputs[0].text in ("Yes", "No")
