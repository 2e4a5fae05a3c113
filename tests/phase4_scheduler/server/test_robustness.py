"""Nonsense, cut wires and crowds: a clear error, the server lives, nobody else's answer is lost."""

import asyncio
import json
import socket
import time
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from phase4_scheduler.server.client import complete, send_all
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
    "1 MB of tokens": (asking(prompt=[1] * 3 * 10**5), 400, "items"),
    "a list of a list of fractions": (asking(prompt=[[1.5] * 10**5]), 400, "prompt.0"),
    "1 MB of empty lists": (asking(prompt=[[]] * 2 * 10**5), 400, "objects and lists"),
    "names of 140,000 fields": (asking(**{f"{i:x}": 0 for i in range(140_000)}), 413, "larger"),
    "1 MB of wrong parts": (asking(CHAT, messages=[{"role": "user", "content": [1] * 10**5}]), 400, "content"),
    "1 MB of bad words": (asking(bad_words=["word"] * 10**5), 400, "bad_words"),
    "an id of a megabyte": (asking(request_id="x" * 10**6), 400, "request_id"),
    "a penalty that rounds to 0": (asking(repetition_penalty=1e-320), 400, "repetition_penalty"),
    "half a character in a stop string": (asking(stop=[HALF]), 200, "text"),
    "half a character in a bad word": (asking(bad_words=[HALF]), 200, "text"),
    "half a character in the model's name": (asking(model=HALF), 404, "does not exist"),
    "half a character in the id": (asking(request_id=HALF), 200, "text"),
    "half a character in a field of no meaning": (asking(user=HALF), 200, "text"),
    "half a character in a role": (asking(CHAT, messages=[{"role": HALF, "content": "x"}]), 400, ""),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 400, "Invalid"),
}  # fmt: skip


@pytest.mark.parametrize("raw, status, word", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_gets_a_clear_error(server, raw, status, word):
    found, body = send(server, raw)
    assert found == status and word in body, body[:300]
    assert "Traceback" not in body
    assert asyncio.run(complete(server.address, ASKED)).usage["completion_tokens"] == 5


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


def test_a_body_that_never_comes_costs_only_its_own_connection(server):
    with connect(server) as wire:
        wire.sendall(post(b"{", length=1000))
        assert asyncio.run(complete(server.address, ASKED)).error is None
    wait_until_idle(server)


def test_a_thousand_connections_at_once(server):
    """Those that say nothing do no harm, and those that ask are all answered."""
    silent = [connect(server) for _ in range(1000)]
    answers = asyncio.run(send_all(server.address, [ASKED] * 200))
    assert {a.error for a in answers} == {None} and len({a.text for a in answers}) == 1
    for wire in silent:
        wire.close()


def test_a_client_that_never_reads_blocks_nobody(server):
    """Its tokens gather in one place of limited size, since its answer is of limited length."""
    wires = [connect(server) for _ in range(8)]
    for wire in wires:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        wire.sendall(asking(max_tokens=400, stream=True, logprobs=5))
    answers = asyncio.run(send_all(server.address, [ASKED] * 50))
    assert {a.error for a in answers} == {None}
    for wire in wires:
        wire.close()
    wait_until_idle(server)


def wait_until_idle(server):
    """Until no answer is under way any more."""
    until = time.monotonic() + 60
    while (load := json.loads(server.call("/load")[1])) != {"server_load": 0}:
        assert time.monotonic() < until, load
        time.sleep(0.1)


def test_a_stream_repeats_the_message_that_it_goes_on_with(server):
    """With echo, as the whole answer does."""
    messages = [{"role": "user", "content": "Tell me a tale."}, {"role": "assistant", "content": "Once upon"}]
    options = {"echo": True, "add_generation_prompt": False, "continue_final_message": True}
    fields = {"messages": messages, "max_tokens": 5, "temperature": 0, **options}
    streamed = asyncio.run(complete(server.address, fields, path=CHAT))
    _, whole = send(server, post(json.dumps(fields).encode(), CHAT))
    text = json.loads(whole)["choices"][0]["message"]["content"]
    assert text.startswith("Once upon") and streamed.text == text


def test_no_request_hangs_when_others_are_cut_off(server):
    """300 requests, of which each tenth leaves after its first token."""

    async def all_of_them():
        bodies = [ASKED | {"prompt": f"{i} times"} for i in range(300)]
        return await asyncio.gather(
            *(
                complete(server.address, body, cut_after=None if i % 10 else 1)
                for i, body in enumerate(bodies)
            )
        )

    answers = asyncio.run(all_of_them())
    assert {answer.error for answer in answers} == {None}
    assert {a.usage["completion_tokens"] for i, a in enumerate(answers) if i % 10} == {5}
    wait_until_idle(server)
    server.wait_for("kv_cache_usage_perc", 0)
