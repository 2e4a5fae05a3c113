"""An attacker of the server's bodies: large, deep, wide, wrong and valid ones, in any field.

    python -m tests.fuzzing http_bodies --minutes 5
    python -m tests.fuzzing http_bodies --seed 7 --case 12       # the same body again

Whatever a client sends, the server answers with a status, other clients need not wait, and memory grows with the bytes
that were sent, not with what they describe. At the end the distribution of /health's latency is printed: it is measured
beside each body, and means something on a machine that does nothing else.
"""

import http.client
import itertools
import json
import random
import statistics
import string
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from phase4_scheduler.server.client import RunningServer, running_server
from tests.fuzzing import attack

CONTEXT = 1024
LIMIT = 2**20 + 64 * CONTEXT  # bytes of the largest body that is read
BYTES_PER_BYTE, SMALL = 20, 8 * 2**20  # memory: so much per byte of the body, and what any request may take
SLOW = 2.0  # seconds in which /health has to answer, on a machine however busy
ITEMS = [
    *("1", "1.5", "-1", "null", "true", '""', '"x"', "[]", "{}", "[1]", "[1.5]", "[[1]]", '"1"', "1e400", "9" * 400),
    *('{"type": "text", "text": ""}', '{"type": "text"}', '{"role": "user", "content": "x"}', '{"role": "user"}'),
    *('"\\ud83d"', '"\\n\\u0101"', '"word"', '{"role": "user", "content": [{"type": "text", "text": "x"}]}'),
]  # fmt: skip
TEXTS = ["a", "word ", "\\n", "\\u0101", "\\\\", '\\"', "🦊", "\\ud83d", "[", ",", " "]
FIELDS = {
    "/v1/completions": ["prompt", "stop", "stop_token_ids", "allowed_token_ids", "bad_words", "logit_bias", "request_id",
                        "suffix", "model", "user", "stream_options", "response_format", "unknown"],
    "/v1/chat/completions": ["messages", "content", "role", "logit_bias", "tools", "bad_words", "allowed_token_ids", "unknown"],
    "/tokenize": ["prompt", "messages", "content", "unknown"],
    "/detokenize": ["tokens", "unknown"],
}  # fmt: skip


def names() -> "itertools.chain[str]":
    """Keys, each of its own: a, b, ..., aa, ab, ..."""
    letters = string.ascii_letters + string.digits
    return ("".join(t) for length in itertools.count(1) for t in itertools.product(letters, repeat=length))


def make_value(rng: random.Random, size: int) -> tuple[str, str]:
    """A JSON value of about so many bytes, and what it is."""
    kind = rng.choice(["list", "list", "list", "object", "text", "deep", "lists"])
    if kind == "text":
        unit = rng.choice(TEXTS)
        return '"' + unit * (size // len(unit.encode())) + '"', f"a text of {unit}"
    if kind == "deep":
        opening, closing = rng.choice([("[", "]"), ('{"a":', "}")])
        depth = size // 2
        return opening * depth + "1" + closing * depth, f"{opening} nested"
    item = rng.choice(ITEMS)
    number = max(1, size // (len(item) + 1))
    if kind == "object":
        digits = rng.random() < 0.5  # as logit_bias has them
        keys = map(str, itertools.count()) if digits else names()
        number = max(1, size // (len(item) + 9))
        return "{" + ",".join(
            f'"{key}":{item}' for key in itertools.islice(keys, number)
        ) + "}", f"an object of {item}"
    inner = "[" + ",".join([item] * number) + "]"
    return (inner, f"a list of {item}") if kind == "list" else (f"[{inner}]", f"a list of a list of {item}")


def make_body(rng: random.Random) -> tuple[str, bytes, str]:
    """A path, a body for it, and what it is."""
    path = rng.choice(sorted(FIELDS))
    field = rng.choice(FIELDS[path])
    value, what = make_value(rng, int(rng.choice([0.01, 0.1, 0.5, 0.95, 0.95, 1.5]) * LIMIT))
    rest = {"max_tokens": 1}
    if path == "/v1/chat/completions":
        rest["messages"] = [{"role": "user", "content": "x"}]
    elif path != "/detokenize":
        rest["prompt"] = "Once"
    rest.pop(field, None)
    if field in ("content", "role"):
        rest.pop("messages", None)
        rest.pop("prompt", None)
        field, value = "messages", f'[{{"role": "user", "content": "x", "{field}": {value}}}]'
    body = json.dumps(rest)[:-1] + f', "{field}": {value}}}'
    raw = body.encode()
    if rng.random() < 0.1:
        raw, what = raw[: rng.randrange(len(raw))], f"{what}, cut off"
    return path, raw, f"{path} {field}: {what}, {len(raw):,} bytes"


class Health(threading.Thread):
    """Asks /health again and again, and keeps how long each answer took."""

    def __init__(self, server: RunningServer) -> None:
        super().__init__(daemon=True)
        self.address = urlsplit(server.address).netloc
        self.seconds: list[float] = []
        self.over = threading.Event()

    def run(self) -> None:
        connection = http.client.HTTPConnection(self.address, timeout=60)
        while not self.over.wait(0.01):
            began = time.perf_counter()
            connection.request("GET", "/health")
            connection.getresponse().read()
            self.seconds.append(time.perf_counter() - began)
        connection.close()


def peak_memory(pid: int) -> int:
    """Most bytes that a process had in memory since `forget_peak` (of Linux; elsewhere what it has now)."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return psutil.Process(pid).memory_info().rss


def forget_peak(pid: int) -> None:
    with suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def run_case(
    server: RunningServer, rng: random.Random, latencies: list[float], growth: list[float]
) -> list[str]:
    """Send one body. Returns what did not hold."""
    path, raw, what = make_body(rng)
    pid = server.process.pid
    forget_peak(pid)
    before = psutil.Process(pid).memory_info().rss
    health = Health(server)
    health.start()
    connection = http.client.HTTPConnection(urlsplit(server.address).netloc, timeout=120)
    findings = []
    began = time.perf_counter()
    try:
        connection.request("POST", path, raw, {"content-type": "application/json"})
        response = connection.getresponse()
        status, text = response.status, response.read().decode()
        if status not in (200, 400, 404, 413):
            findings.append(f"status {status}: {text[:200]}")
        if status != 200 and len(text) > 2000:
            findings.append(f"an error of {len(text):,} characters")
    except (OSError, http.client.HTTPException) as error:
        findings.append(f"no answer: {error!r}")
    finally:
        connection.close()
        seconds = time.perf_counter() - began
        health.over.set()
        health.join()
    grown = max(0, peak_memory(pid) - before)
    if len(raw) > LIMIT // 3:
        growth[what] = grown / len(raw)
    if grown > SMALL + BYTES_PER_BYTE * len(raw):
        findings.append(f"{grown:,} bytes of memory for a body of {len(raw):,}")
    if max(health.seconds, default=0) > SLOW:
        findings.append(f"/health took {max(health.seconds):.2f} s, the body {seconds:.2f} s")
    latencies += health.seconds
    return [f"{what}: {finding}" for finding in findings]


def run(seed: int, **limits: Any) -> list[str]:
    """See `attack`."""
    latencies: list[float] = []
    growth: dict[str, float] = {}
    with running_server("--max-num-seqs", "8", "--max-model-len", str(CONTEXT)) as server:
        findings = attack(
            "http_bodies", lambda rng, _: run_case(server, rng, latencies, growth), seed, **limits
        )
    tail = statistics.quantiles(latencies, n=100)[-1] if len(latencies) > 1 else 0.0
    print(
        f"/health {len(latencies):,} times, p99 {1000 * tail:.1f} ms, longest {1000 * max(latencies, default=0):.1f} ms; "
        f"at most {max(growth.values(), default=0):.1f} bytes of memory per byte"
    )
    return findings
