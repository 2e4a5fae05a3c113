"""A client that streams, with the time of each piece; and a server to try it on.

    with running_server("--max-num-seqs", "8") as server:
        answers = asyncio.run(send_all(server.address, [{"prompt": "Once", "max_tokens": 20}] * 16))

Every client sees latency from its own end of the wire: TTFT from sending the request to the first piece, ITL from
each piece to the next. The server's own clock knows nothing of the way between them.
"""

import asyncio
import http.client
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from labkit.errors import LabError
from labkit.paths import ROOT


@dataclass
class Answer:
    """What came back for one request. Times are `time.perf_counter()`, in seconds."""

    sent: float
    status: int = 0
    text: str = ""
    times: list[float] = field(default_factory=list)  # when each piece of text came
    ended: float = 0.0
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    error: str | None = None  # the server's message, or why the connection broke

    @property
    def ttft(self) -> float:
        return self.times[0] - self.sent


async def complete(address: str, body: dict[str, Any], cut_after: int | None = None) -> Answer:
    """One streamed answer of /v1/completions.

    Args:
        address: of the server, as "http://127.0.0.1:8000". body: the request; streaming and usage are added.
        cut_after: go away after so many pieces of text.
    """
    url = urlsplit(address)
    asked = {"stream": True, "stream_options": {"include_usage": True}} | body
    raw = json.dumps(asked).encode()
    # HTTP/1.0: the answer ends with the connection, so its lines can be read as they come.
    head = f"POST /v1/completions HTTP/1.0\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(raw)}\r\n"
    answer = Answer(time.perf_counter())
    try:
        reader, writer = await asyncio.open_connection(url.hostname, url.port, limit=2**26)
    except OSError as error:
        answer.error = f"no connection: {error}"
        return answer
    try:
        writer.write(head.encode() + b"\r\n" + raw)
        answer.status = int((await reader.readline()).split()[1])
        while (await reader.readline()).strip():
            pass  # headers
        if answer.status != 200:
            answer.error = (await reader.read()).decode()
            return answer
        # In front of "data: " may stand the length of an HTTP chunk: some servers know nothing of HTTP/1.0.
        while (data := (await reader.readuntil(b"\n\n")).partition(b"data: ")[2]) != b"[DONE]\n\n":
            take(answer, json.loads(data))
            if cut_after is not None and len(answer.times) >= cut_after:
                break
    except (OSError, EOFError, IndexError, ValueError) as error:
        answer.error = f"the connection broke: {error}"
    finally:
        answer.ended = time.perf_counter()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    return answer


def take(answer: Answer, chunk: dict[str, Any]) -> None:
    """Add a chunk of the stream."""
    if "error" in chunk:
        answer.error = chunk["error"]["message"]
        return
    answer.usage = chunk.get("usage") or answer.usage
    for choice in chunk["choices"]:
        if piece := choice["text"]:
            answer.text += piece
            answer.times.append(time.perf_counter())
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason


async def send_all(
    address: str, bodies: Iterable[dict[str, Any]], cut_after: int | None = None
) -> list[Answer]:
    """Answers to many requests that are sent at once, in the order of the requests. cut_after: as for `complete`."""
    return await asyncio.gather(*(complete(address, body, cut_after) for body in bodies))


@dataclass
class RunningServer:
    """A server in processes of its own: this one's child serves HTTP, and its child is the engine."""

    address: str
    process: subprocess.Popen

    def call(self, path: str, body: dict[str, Any] | None = None, timeout: float = 60) -> tuple[int, str]:
        """Status and text of an answer: to a POST of this body, or to a GET."""
        connection = http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=timeout)
        try:
            if body is None:
                connection.request("GET", path)
            else:
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def metrics(self) -> dict[str, float]:
        """All samples of /metrics by name, those with different labels summed up."""
        samples: dict[str, float] = defaultdict(float)
        for family in text_string_to_metric_families(self.call("/metrics")[1]):
            for sample in family.samples:
                samples[sample.name] += sample.value
        return samples


@contextmanager
def running_server(*options: str, env: Mapping[str, str] | None = None) -> Iterator[RunningServer]:
    """`lab serve` on a free port with these options; ended when the block is left.

    Args:
        env: variables of its environment besides this process's own.

    Raises:
        LabError: it did not start. Its own message is above.
    """
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "phase4_scheduler" / "serve.py"), "--port", "0", *options],
        stdout=subprocess.PIPE, text=True, env=os.environ | (env or {}),
    )  # fmt: skip
    try:
        words = process.stdout.readline().split()
        address = next((word for word in words if word.startswith("http://")), None)
        if address is None:
            raise LabError(f"the server did not start: serve.py {' '.join(options)}")
        yield RunningServer(address, process)
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        finally:
            process.kill()
            process.stdout.close()
