"""Nonsense, cut wires and crowds: a clear error, the server lives, no other client's answer is lost."""

import asyncio
import json
import random
import socket
import statistics
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from phase4_scheduler.server.client import complete
from tests.fuzzing.http_bodies import BYTES_PER_BYTE, LONGEST_REFUSAL, SMALL, make_body
from tests.phase4_scheduler.server.test_server import running

pytestmark = pytest.mark.proof
ASKED = {"prompt": "Once upon a time", "max_tokens": 5, "ignore_eos": True, "temperature": 0}
HALF = "\ud83d"  # half of an emoji, as JSON can spell it


@pytest.fixture(scope="module")
def server():
    with running("--max-num-seqs", "16") as server:
        yield server


def connect(server):
    address = urlsplit(server.address)
    return socket.create_connection((address.hostname, address.port), timeout=60)


def post(body, path="/v1/completions", length=None):
    """The bytes of a request."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    )
    return f"{head}Content-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


def asking(path="/v1/completions", **fields):
    return post(json.dumps(ASKED | fields).encode(), path)


def send(server, raw):
    """Status and body of what comes back."""
    with connect(server) as wire:
        wire.settimeout(120)
        wire.sendall(raw)
        answer = b""
        while piece := wire.recv(2**16):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


CHAT = "/v1/chat/completions"
NONSENSE = {
    "JSON nested a million deep": (post(b"[" * 10**6), 400, "parsing"),
    "a number beyond all": (asking(temperature=1e300), 400, "temperature"),
    "a body of 33 MiB": (post(b" " * 33 * 2**20), 413, "larger than 1,114,112 bytes"),
    "a prompt of 1 MB": (asking(prompt="word " * 2 * 10**5), 400, "shorten"),
    "a prompt of 1 MB, cut to fit": (asking(prompt="word " * 2 * 10**5, truncate_prompt_tokens=8), 200, "text"),
    "names of 140,000 fields": (asking(**{f"{i:x}": 0 for i in range(140_000)}), 413, "larger"),
    "1 MB of wrong parts": (asking(CHAT, messages=[{"role": "user", "content": [1] * 10**5}]), 400, "content"),
    "1 MB of bad words": (asking(bad_words=["word"] * 10**5), 400, "bad_words"),
    "an id of a megabyte": (asking(request_id="x" * 10**6), 400, "request_id"),
    "a penalty that rounds to 0": (asking(repetition_penalty=1e-320), 400, "repetition_penalty"),
    "half a character in a stop string": (asking(stop=[HALF]), 200, "text"),
    "half a character in a bad word": (asking(bad_words=[HALF]), 200, "text"),
    "half a character in the model's name": (asking(model=HALF), 404, "does not exist"),
    "half a character in the id": (asking(request_id=HALF), 200, "text"),
    "half a character in a role": (asking(CHAT, messages=[{"role": HALF, "content": "x"}]), 400, ""),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 400, "Invalid"),
}  # fmt: skip


@pytest.mark.parametrize("raw, status, word", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_gets_a_clear_error(server, raw, status, word):
    found, body = send(server, raw)
    assert found == status and word in body, body[:300]
    assert "Traceback" not in body
    assert asyncio.run(complete(server.address, ASKED)).usage["completion_tokens"] == 5


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the most memory that a process had")
def test_bodies_of_any_shape_take_memory_by_their_size(server):
    """200 bodies, deep, wide, wrong and valid, up to the limit. Prints how long /health took beside them."""
    health, over = [], threading.Event()

    def ask_for_health():
        while not over.wait(0.002):
            began = time.perf_counter()
            assert server.call("/health")[0] == 200
            health.append(time.perf_counter() - began)

    probe = threading.Thread(target=ask_for_health)
    probe.start()
    most = 0.0
    try:
        for seed in range(200):
            path, raw, what = make_body(random.Random(seed))
            Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # forget the most it had
            before = memory(server, "VmRSS")
            status, text = send(server, post(raw, path))
            assert status in (200, 400, 404, 413) and (status == 200 or len(text) < LONGEST_REFUSAL), what
            per_byte = (memory(server, "VmHWM") - before - SMALL) / len(raw)
            assert per_byte <= BYTES_PER_BYTE, what
            most = max(most, per_byte)
    finally:
        over.set()
        probe.join()
    p99 = statistics.quantiles(health, n=100)[98]
    print(
        f"{most:.1f} bytes per byte; /health {len(health):,} times: {p99:.3f} s p99, {max(health):.3f} s at most"
    )


def memory(server, which):
    """Bytes of the process that reads the bodies: now (VmRSS), or the most it ever had (VmHWM)."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) * 1024


@pytest.mark.parametrize("line", [b"name: value\r\n", b"n"], ids=["many", "one"])
def test_headers_without_end_end_the_connection(server, line):
    sent = 0
    with connect(server) as wire, suppress(ConnectionError):
        wire.sendall(b"GET /health HTTP/1.1\r\n")
        while sent < 10 * 2**20:
            wire.sendall(line * 1000)
            sent += len(line) * 1000
    assert sent < 10 * 2**20
    assert asyncio.run(complete(server.address, ASKED)).error is None


def test_what_other_connections_do_costs_no_client_an_answer(server):
    """1,000 that say nothing, a body that never comes, 8 clients that never read, and each tenth that leaves after a token."""
    wires = [connect(server) for _ in range(1009)]
    wires[0].sendall(post(b"{", length=1000))
    for wire in wires[
        1:9
    ]:  # its tokens gather in one place: of limited size, as its answer is of limited length
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        wire.sendall(asking(max_tokens=400, stream=True, logprobs=5))

    async def calls():
        cuts = [None if i % 10 else 1 for i in range(300)]
        return await asyncio.gather(*(complete(server.address, ASKED, cut_after=cut) for cut in cuts))

    answers = asyncio.run(calls())
    assert {answer.error for answer in answers} == {None}
    assert len({a.text for i, a in enumerate(answers) if i % 10}) == 1
    assert {a.usage["completion_tokens"] for i, a in enumerate(answers) if i % 10} == {5}
    for wire in wires:
        wire.close()
    server.wait_for("kv_cache_usage_perc", 0)
