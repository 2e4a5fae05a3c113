"""Comparing with vLLM: the comparisons themselves, our recordings, and the worker's protocol without vLLM.

With INFERENCE_LAB_VLLM_PYTHON=ENV/bin/python the real one is asked as well.
"""

import json
import math
import os
import sys
from dataclasses import replace
from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import LabError
from phase2_attention_kvcache.model import Transformer
from phase4_scheduler.engine import EngineConfig, LLMEngine
from phase5_real_gpu import vllm_comparison
from phase5_real_gpu.benchmarks import vllm_checks as checks
from phase5_real_gpu.benchmarks import vllm_process
from phase5_real_gpu.story import vllm_story

on_posix = pytest.mark.skipif(os.name == "nt", reason="shell scripts")
without_vllm = pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed here")


# ---------------------------------------------------------------------- tokens


@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=20), min_size=1, max_size=5), st.data())
@settings(max_examples=60)
def test_one_changed_token_or_an_earlier_end_is_found_where_it_is(texts, data):
    assert checks.compare_tokens(texts, texts) == []
    request = data.draw(st.integers(0, len(texts) - 1))
    place = data.draw(st.integers(0, len(texts[request]) - 1))
    changed, ends = [list(ids) for ids in texts], data.draw(st.booleans())
    changed[request][place:] = [] if ends else [texts[request][place] + 1]
    theirs = None if ends else texts[request][place] + 1
    assert checks.compare_tokens(texts, changed) == [(request, place, (texts[request][place], theirs))]
    assert checks.compare_tokens(changed, texts) == [(request, place, (theirs, texts[request][place]))]


# ---------------------------------------------------------------------- schedules


def test_the_first_different_step_is_named():
    def steps():
        return [
            {"step": i, "scheduled": [[0, 16], [1, 1]], "blocks": [[1, 2], [3]], "free_blocks": 9 - i}
            for i in range(4)
        ]

    assert checks.compare_schedules(steps(), steps()) is None
    for what, value in (("scheduled", [[1, 1], [0, 16]]), ("blocks", [[1, 2], [4]]), ("free_blocks", None)):
        theirs = steps()
        theirs[2][what] = value
        assert checks.compare_schedules(steps(), theirs) == (2, what, steps()[2][what], value)
    assert checks.compare_schedules(steps(), steps()[:3]).what == "number of steps"
    assert checks.compare_schedules(steps(), [{"step": i} for i in range(4)]).step == 0  # a field is missing


# ---------------------------------------------------------------------- our side


@pytest.fixture(scope="module")
def tales():
    return Transformer.from_pretrained("tales")


@pytest.fixture(scope="module")
def small(tales):
    """Some hundred steps of it take no time."""
    shape = dict(vocab_size=211, d_model=32, num_layers=2, num_heads=2, num_kv_heads=2, head_dim=16, d_ff=64)
    return Transformer.random(replace(tales.config, **shape), "float32")


def test_our_schedule_is_recorded_and_leaves_no_trace(small):
    requests = checks.schedule_requests(small.config.vocab_size, 0)[:10]
    config = EngineConfig(**(vllm_story.SCHEDULE | {"num_blocks": 12}))
    engine = LLMEngine(small, None, config)
    recorded, answers = checks.our_schedule(engine, requests)
    assert "schedule" not in vars(engine.core.scheduler) and not engine.has_unfinished_requests
    assert sum(len(s["preempted"]) for s in recorded) > 0  # the cache is too small, on purpose
    computed = dict.fromkeys(range(10), 0)
    for s in recorded:
        for (request, n), before, blocks in zip(s["scheduled"], s["computed"], s["blocks"], strict=True):
            assert len(blocks) == -(-(before + n) // 32)
            computed[request] = before + n
    assert computed == {r["id"]: len(r["prompt"]) + r["max_tokens"] - 1 for r in requests}
    # An engine with room for all writes the same.
    assert checks.our_schedule(LLMEngine(small, None, EngineConfig(max_num_seqs=16)), requests)[1] == answers
    again = checks.our_schedule(LLMEngine(small, None, config), requests)
    assert (
        checks.compare_schedules(recorded, again[0]) is None and json.loads(json.dumps(recorded)) == recorded
    )


# ---------------------------------------------------------------------- the worker


@without_vllm
def test_without_vllm_the_script_says_how_to_install_it(run_script):
    report = run_script(vllm_comparison, "--quick")
    assert "vllm==0.32" in report["out"] and "--vllm-python" in report["out"]
    verdicts = {p["claim"]: p["verdict"] for p in report["predictions"]}
    assert verdicts == dict.fromkeys(("vllm-same-tokens", "vllm-same-schedule"), "needs vLLM")


def script(folder, text, mode=0o700):
    """A shell script in the place of vLLM's Python."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("exit 3", "no message"),
        ("echo 'ValueError: no such card' >&2; echo 'gone' >&2; exit 1", "ValueError: no such card"),
        ("echo hello; sleep 60", "it said 'hello'"),
        ("echo '[1, 2]'", "it said '[1, 2]'"),
        ('echo \'{"ready": "0.32.0"}\'', "stopped"),  # and then it is gone
    ],
)
@on_posix
def test_a_worker_that_stops_or_says_something_else_is_told_in_a_line(text, says, tmp_path, mistake_of):
    assert says in mistake_of(vllm_comparison, "--quick", "--vllm-python", script(tmp_path, text))


def test_a_python_that_brings_no_vllm_is_told_in_a_line(tmp_path, mistake_of):
    def said_of(python):
        return mistake_of(vllm_comparison, "--quick", "--vllm-python", python)

    assert "python': give ENV/bin/python" in said_of(tmp_path / "bin" / "python")
    assert "no python at" in said_of(tmp_path)  # a folder
    if os.name == "posix":
        assert "cannot be run" in said_of(script(tmp_path, "exit 0", mode=0o600))
    if find_spec("vllm") is None:
        assert "holds no vLLM" in said_of(sys.executable)


@on_posix
def test_a_worker_that_hangs_is_ended_with_all_it_started(tmp_path):
    with pytest.raises(LabError, match=r"no answer within 0\.5 s .*: Loading: 100%$"):
        vllm_process.Worker(script(tmp_path, "echo 'Loading: 100%' >&2\nsleep 600 &\nwait"), timeout=0.5)


class Played:
    """vLLM's part, played by our own engine; with `changed` one step and one token are others."""

    version, changed = "0.32.9", False

    def __init__(self, python, **settings):
        assert settings["num_gpu_blocks_override"] == settings["num_blocks"] and settings["in_process"]
        self.engine = LLMEngine(
            Transformer.from_pretrained("tales"), None, EngineConfig(**vllm_story.SCHEDULE)
        )

    def ask(self, do, **question):
        if do == "schedule":
            steps, answers = checks.our_schedule(self.engine, **question)
            if self.changed:
                steps[10]["blocks"][0] = [99]
            return {"steps": steps, "answers": answers}
        answers = checks.our_answers(self.engine, question["prompts"], question["max_tokens"], [])
        if self.changed:
            answers[1][2] = 7
        return {"answers": answers}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_a_schedule_that_differs_fails_the_script_and_is_shown(capsys, monkeypatch, tales):
    few = [r | {"max_tokens": 12} for r in checks.schedule_requests(tales.config.vocab_size, 0)[:9]]
    monkeypatch.setattr(vllm_story.checks, "schedule_requests", lambda *_: few)
    monkeypatch.setattr(vllm_story, "Worker", Played)
    arguments = ["--quick", "--device", "cpu", "--vllm-python", sys.executable]
    assert vllm_comparison.main(arguments) == 0
    assert "9 of these 9 answers" in capsys.readouterr().out
    monkeypatch.setattr(Played, "changed", True)
    assert vllm_comparison.main(arguments) == 1
    out = capsys.readouterr().out
    assert "vllm-same-tokens, vllm-same-schedule" in out
    assert "first in step" in out and ", blocks:" in out and "[[99]" in out
    assert "prompt 1, token 2" in out and "vLLM's 7" in out


@pytest.mark.skipif("INFERENCE_LAB_VLLM_PYTHON" not in os.environ, reason="set INFERENCE_LAB_VLLM_PYTHON")
def test_the_real_vllm_decides_as_we_do(run_script):
    python = os.environ["INFERENCE_LAB_VLLM_PYTHON"]
    report = run_script(vllm_comparison, "--quick", "--vllm-python", python)
    assert report["claims"]["vllm-same-schedule"]["measured"] is True
    assert report["claims"]["vllm-same-tokens"]["measured"] == 0
    assert math.isfinite(report["results"]["preemptions"])
