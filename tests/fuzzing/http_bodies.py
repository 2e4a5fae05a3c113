"""An attacker of the server's bodies: large, deep, wide, wrong and valid ones, in any field.

Whatever a client sends, the server answers with a status, other clients need not wait, and memory grows with the bytes
that were sent, not with what they describe.
"""

import http.client
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil

from phase4_scheduler.server.client import RunningServer

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
        form = rng.choice(["d", "x"])  # numbers, as logit_bias has them, and others
        number = max(1, size // (len(item) + 9))
        return "{" + ",".join(f'"{key:{form}}":{item}' for key in range(number)) + "}", f"an object of {item}"
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


def slowest_health(server: RunningServer, over: threading.Event) -> float:
    """Ask /health again and again until it is `over`. Returns the seconds of the slowest answer."""
    slowest = 0.0
    while not over.wait(0.01):
        began = time.perf_counter()
        server.call("/health")
        slowest = max(slowest, time.perf_counter() - began)
    return slowest


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


def try_body(rng: random.Random, server: RunningServer) -> list[str]:
    """Send one body. Returns what did not hold."""
    path, raw, what = make_body(rng)
    pid = server.process.pid
    forget_peak(pid)
    before = psutil.Process(pid).memory_info().rss
    findings, over = [], threading.Event()
    with ThreadPoolExecutor(1) as beside:
        health = beside.submit(slowest_health, server, over)
        try:
            status, text = server.call(path, raw, timeout=120)
            if status not in (200, 400, 404, 413):
                findings.append(f"status {status}: {text[:200]}")
            if status != 200 and len(text) > 2000:
                findings.append(f"an error of {len(text):,} characters")
        except (OSError, http.client.HTTPException) as error:
            findings.append(f"no answer: {error!r}")
        finally:
            over.set()
    grown = max(0, peak_memory(pid) - before)
    if grown > SMALL + BYTES_PER_BYTE * len(raw):
        findings.append(f"{grown:,} bytes of memory for a body of {len(raw):,}")
    if health.result() > SLOW:
        findings.append(f"/health took {health.result():.2f} s")
    return [f"{what}: {finding}" for finding in findings]
