"""Two engines behind one front: the same tokens, and a replica that is killed loses no other answer."""

import asyncio
import re
import time

import psutil
import pytest

from labkit.errors import LabError
from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine import LLMEngine
from phase4_scheduler.server.client import running_server, send_all
from phase4_scheduler.server.fleet import deal_out_gpus

PROMPTS = [
    f"Once upon a time there were {n} kings, and" for n in ("two", "three", "four", "five", "six", "ten")
]


@pytest.fixture(scope="module")
def server():
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
        r'^vllm:generation_tokens_total{engine="(\d)".*} (\S+)', server.call("/metrics")[1], re.MULTILINE
    )
    return [float(count) for _, count in sorted(found)]


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the replica did not come back"
        time.sleep(0.2)


def kill_the_first_while_both_answer(server):
    """The answers then."""

    async def run():
        under_way = asyncio.create_task(answers(server, 600))
        await asyncio.sleep(0.5)
        children = psutil.Process(server.process.pid).children()
        next(child for child in children if "spawn_main" in "".join(child.cmdline())).kill()
        return await under_way

    return asyncio.run(run())


@pytest.mark.proof
def test_two_replicas_answer_as_one_engine_and_a_killed_one_comes_back(server):
    assert [answer.text for answer in asyncio.run(answers(server, 20))] == expected(20)
    assert written(server) == [60, 60]
    lost = kill_the_first_while_both_answer(server)
    assert all(answer.error or answer.text == text for answer, text in zip(lost, expected(600), strict=True))
    assert sum(answer.error is None for answer in lost) >= 3
    before, right = written(server), expected(5)

    def both_write():
        assert [a.text for a in asyncio.run(answers(server, 5))] == right
        return all(now > then for now, then in zip(written(server), before, strict=True))

    until(both_write)


@pytest.mark.proof
def test_the_cache_aware_router_finds_each_talk_by_the_replicas_events(server):
    """Three talks that grow by two blocks a turn: every turn finds all blocks of the turn before, on both replicas."""
    with running_server("--replicas", "2", "--router", "cache-aware") as fleet:
        for turn in range(4):
            for talk in range(3):
                prompt = [100 * talk + i for i in range(64 + 32 * turn)]
                assert fleet.call("/v1/completions", {"prompt": prompt, "max_tokens": 1})[0] == 200
        assert fleet.metrics()["vllm:prefix_cache_hits_total"] == 3 * (64 + 96 + 128)
        assert min(written(fleet)) >= 4


@pytest.mark.parametrize(
    "visible, each, dealt",
    [("", 1, [[], []]), ("0,3", 1, [["0"], ["3"]]), ("4,5,6,7", 2, [["4", "5"], ["6", "7"]])],
)
def test_each_replica_has_gpus_of_its_own(visible, each, dealt, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert deal_out_gpus(2, each) == dealt
    with pytest.raises(
        LabError, match=r"3 replicas of 2 GPUs, and this machine has 5: choose fewer --replicas"
    ):
        monkeypatch.setattr("torch.cuda.device_count", lambda: 5)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        deal_out_gpus(3, 2)
