"""Two engines as Ray actors behind one front: the same tokens, and a replica that is killed loses no other answer."""

import asyncio
import importlib.util
import re
import sys
import time

import psutil
import pytest

from labkit.errors import LabError
from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine import LLMEngine
from phase4_scheduler.server import launch
from phase4_scheduler.server.client import running_server, send_all

PROMPTS = [
    f"Once upon a time there were {n} kings, and" for n in ("two", "three", "four", "five", "six", "ten")
]


@pytest.fixture(scope="module")
def server():
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install ray==2.60.0")
    with running_server("--replicas", "2", "--router", "round-robin", "--dtype", "float32") as running:
        yield running


def answers(server, tokens):
    asked = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    return send_all(server.address, [asked | {"prompt": prompt} for prompt in PROMPTS])


def expected(tokens):
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0)
    return [
        output.text
        for output in LLMEngine.from_pretrained("tales", dtype="float32").generate(PROMPTS, params)
    ]


def written(server):
    """Tokens written so far, by replica."""
    found = re.findall(
        r'^vllm:generation_tokens_total{engine="(\d)".*} (\S+)', server.get("/metrics")[1], re.MULTILINE
    )
    return [float(count) for _, count in sorted(found)]


@pytest.mark.proof
def test_two_replicas_answer_as_one_engine_and_a_killed_one_comes_back(server):
    assert [answer.text for answer in asyncio.run(answers(server, 20))] == expected(20)
    assert written(server) == [60, 60]

    async def kill_one():
        under_way = asyncio.create_task(answers(server, 200))
        await asyncio.sleep(0.5)
        actors = [
            p
            for p in psutil.Process(server.process.pid).children(recursive=True)
            if "ray::Replica" in p.name()
        ]
        actors[0].kill()
        return await under_way

    texts, right = asyncio.run(kill_one()), expected(200)
    assert all(answer.error or answer.text == text for answer, text in zip(texts, right, strict=True))
    assert sum(answer.error is None for answer in texts) >= 3

    right_now, before, deadline = expected(5), written(server), time.monotonic() + 60
    while min(now - then for now, then in zip(written(server), before, strict=True)) == 0:
        assert time.monotonic() < deadline, "the replica did not come back"
        assert [a.text for a in asyncio.run(answers(server, 5))] == right_now


def test_without_ray_one_line_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "phase4_scheduler.server.ray_fleet", raising=False)
    with pytest.raises(LabError, match="pip install ray"):
        launch.find_fleet()
