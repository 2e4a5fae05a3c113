"""Two engines as Ray actors behind one front: the same tokens, and a replica that is killed loses no other answer."""

import asyncio
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
    pytest.importorskip("ray", reason="Ray is not installed: pip install ray==2.60.0")
    with running_server("--replicas", "2", "--router", "round-robin", "--dtype", "float32") as running:
        yield running


def answers(server, tokens):
    asked = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    return send_all(server.address, [asked | {"prompt": prompt} for prompt in PROMPTS])


def expected(tokens):
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0)
    outputs = LLMEngine.from_pretrained("tales", dtype="float32").generate(PROMPTS, params)
    return [output.text for output in outputs]


def written(server):
    """Tokens written so far, by replica."""
    found = re.findall(
        r'^vllm:generation_tokens_total{engine="(\d)".*} (\S+)', server.call("/metrics")[1], re.MULTILINE
    )
    return [float(count) for _, count in sorted(found)]


def lose(server, find):
    """Kill the processes that `find()` gives while answers are under way: they end with an error, the others are right."""

    async def run():
        under_way = asyncio.create_task(answers(server, 200))
        await asyncio.sleep(0.5)
        for process in find():
            process.kill()
        return await under_way

    texts = asyncio.run(run())
    assert all(answer.error or answer.text == text for answer, text in zip(texts, expected(200), strict=True))
    assert sum(answer.error is None for answer in texts) >= 3


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the replica did not come back"
        time.sleep(0.2)


def replicas_of(process):
    return [p for p in psutil.Process(process.pid).children(recursive=True) if "ray::Replica" in p.name()]


@pytest.mark.proof
def test_two_replicas_answer_as_one_engine_and_a_killed_one_comes_back(server):
    assert [answer.text for answer in asyncio.run(answers(server, 20))] == expected(20)
    assert written(server) == [60, 60]
    lose(server, lambda: replicas_of(server.process)[:1])
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


@pytest.fixture
def two_nodes(monkeypatch):
    """Two Ray nodes of one core each, started with `ray start`, and the server in front of them."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install ray==2.60.0")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    ray = str(Path(sys.executable).with_name("ray"))
    ports = ["--min-worker-port", "0", "--max-worker-port", "0"]  # any that is free
    common = ["--num-cpus", "1", *ports, "--disable-usage-stats", "--block"]
    folder, nodes = tempfile.mkdtemp(prefix="ray"), []
    head = ["--head", "--port", str(port), "--include-dashboard", "false", "--temp-dir", folder]
    for name, value in (("RAY_AUTH_MODE", "token"), ("RAY_AUTH_TOKEN", 64 * "a"), ("RAY_ADDRESS", address)):
        monkeypatch.setenv(name, value)
    try:
        for where in (head, ["--address", address]):
            nodes.append(subprocess.Popen([ray, "start", *where, *common], stdout=subprocess.PIPE, text=True))
            assert any("Ray runtime started" in line for line in nodes[-1].stdout)
        with running_server("--replicas", "2", "--router", "round-robin", "--dtype", "float32") as running:
            yield running, nodes
    finally:
        for node in reversed(nodes):
            for process in [*psutil.Process(node.pid).children(recursive=True), node]:
                process.kill()
            node.wait()
            node.stdout.close()
        shutil.rmtree(folder)


@pytest.mark.proof
def test_a_lost_node_takes_no_answer_of_the_other_with_it(two_nodes):
    server, nodes = two_nodes
    assert [len(replicas_of(node)) for node in nodes] == [1, 1]
    lose(server, lambda: psutil.Process(nodes[1].pid).children(recursive=True))
    assert [a.text for a in asyncio.run(answers(server, 5))] == expected(5)
    until(lambda: len(replicas_of(nodes[0])) == 2)  # Ray starts it again on the node that is left


@pytest.mark.proof
@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere:", "ray://127.0.0.1:1"])
def test_a_cluster_that_is_not_there(address):
    ray_fleet = pytest.importorskip("phase4_scheduler.server.ray_fleet")
    with pytest.raises(LabError, match="unset RAY_ADDRESS"):
        ray_fleet.check_address(address)


def test_without_ray_one_line_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "phase4_scheduler.server.ray_fleet", raising=False)
    with pytest.raises(LabError, match="pip install ray"):
        launch.make_server("tales", replicas=2)
