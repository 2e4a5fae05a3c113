"""What clients and the system may do to a server: go away, send nonsense, end the engine, ask it to stop."""

import asyncio
import http.client
import json
import signal
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import urlsplit

import openai
import psutil
import pytest

from labkit.errors import LabError
from labkit.paths import ROOT
from phase4_scheduler.server.client import RunningServer, running_server, send_all

pytestmark = pytest.mark.proof
ENDLESS = {"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True, "stream": True}


class Running(RunningServer):
    """A server in processes of its own, and what the tests do to it."""

    def begin(self, body):
        """A call whose answer is not read yet."""
        connection = http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        return connection

    def open(self, body):
        """A stream, its first chunk read."""
        connection = self.begin(body)
        response = connection.getresponse()
        assert response.readline().startswith(b"data: ")
        return connection, response

    def metric(self, name):
        return self.metrics()[f"vllm:{name}"]

    def wait_for(self, name, value):
        """Until a metric has this value."""
        until = time.monotonic() + 60
        while self.metric(name) != value:
            assert time.monotonic() < until, f"{name} is {self.metric(name)}"
            time.sleep(0.05)


@contextmanager
def running(*options):
    with running_server(*options) as server:
        yield Running(server.address, server.process)


@pytest.fixture(scope="module")
def server():
    with running("--max-num-seqs", "8") as server:
        yield server


def test_the_openai_package_takes_it_for_openais(server):
    client = openai.OpenAI(base_url=f"{server.address}/v1", api_key="none")
    assert [model.id for model in client.models.list()] == ["tales"]
    asked = dict(model="tales", max_tokens=8, temperature=0)
    whole = client.completions.create(prompt="Once upon a time", **asked)
    chunks = list(client.completions.create(prompt="Once upon a time", stream=True, **asked))
    assert whole.choices[0].text and "".join(c.choices[0].text for c in chunks) == whole.choices[0].text
    messages = [{"role": "user", "content": "Who is there?"}]
    said = client.chat.completions.create(messages=messages, logprobs=True, top_logprobs=2, **asked)
    assert len(said.choices[0].logprobs.content) == said.usage.completion_tokens == 8
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="x")


def test_a_client_that_goes_away_frees_what_its_request_held(server):
    ended, streams = server.metric("request_success_total"), [server.open(ENDLESS) for _ in range(4)]
    server.wait_for("num_requests_running", 4)
    for connection, response in streams:
        response.close()
        connection.close()
    server.wait_for("num_requests_running", 0)
    assert server.metric("kv_cache_usage_perc") == 0
    assert server.metric("request_success_total") == ended  # as in vLLM: a client that leaves is no end
    waiting = server.begin(ENDLESS | {"stream": False})
    server.wait_for("num_requests_running", 1)
    waiting.close()  # without a stream only the server itself can notice
    server.wait_for("num_requests_running", 0)


def test_two_calls_with_one_id_do_not_mix(server):
    asked = {"max_tokens": 60, "temperature": 0, "ignore_eos": True, "request_id": "mine"}
    calls = [("/v1/completions", asked | {"prompt": prompt}) for prompt in ("Once upon a time", "The king")]
    with ThreadPoolExecutor() as threads:
        together = [json.loads(text) for _, text in threads.map(lambda call: server.call(*call), calls)]
    alone = [json.loads(server.call(*call)[1]) for call in calls]
    assert [answer["choices"] for answer in together] == [answer["choices"] for answer in alone]
    assert {answer["id"] for answer in together} == {"cmpl-mine"}


def test_an_engine_that_ends_ends_all_streams_with_an_error():
    with running() as server:
        _connection, response = server.open(ENDLESS)
        assert server.call("/health")[0] == 200
        for child in psutil.Process(server.process.pid).children():
            child.kill()
        rest = response.read().decode()
        assert '"error"' in rest and rest.endswith("data: [DONE]\n\n")
        # So Prometheus' `up` is 0, and ServerDown rings.
        calls = [("/health",), ("/metrics",), ("/v1/completions", ENDLESS)]
        assert [server.call(*call)[0] for call in calls] == [503] * 3


@pytest.mark.parametrize("timeout", [0, 600])
def test_a_server_that_is_told_to_stop(timeout):
    """It drops what is under way, or lets it end first. It does not wait for a client that watches its steps."""
    with running("--shutdown-timeout", str(timeout), "--enable-step-events") as server:
        watching = urllib.request.urlopen(f"{server.address}/events")
        assert watching.readline() == b"event: engine\n"
        asked = ENDLESS | {"max_tokens": 200 if timeout else 900}
        _connection, response = server.open(asked)
        waiting = ThreadPoolExecutor().submit(server.call, "/v1/completions", asked | {"stream": False})
        server.wait_for("num_requests_running", 2)
        server.process.send_signal(signal.SIGTERM)
        rest = response.read().decode()
        status, whole = waiting.result()
        assert ('"finish_reason":"length"' in rest) == (timeout > 0) and rest.endswith("data: [DONE]\n\n")
        assert ("shutting down" in rest) == (timeout == 0)
        assert status == (200 if timeout else 503) and json.loads(whole)
        server.process.wait(timeout=60)


def test_a_queue_that_is_full_answers_503_and_a_client_that_leaves_it_is_not_served():
    with running("--max-num-seqs", "1", "--max-num-queued-reqs", "2") as server:
        stream = server.open(ENDLESS)
        waiting = server.begin(ENDLESS)
        server.wait_for("num_requests_waiting", 1)
        status, text = server.call("/v1/completions", ENDLESS)
        assert status == 503 and json.loads(text)["error"]["type"] == "ServiceUnavailableError"
        assert server.metric("admission_rejections_total") == 1
        waiting.close()
        server.wait_for("num_requests_waiting", 0)
        assert stream and server.metric("num_requests_running") == 1
        assert server.metric("time_to_first_token_seconds_count") == 1


def test_a_port_in_use_and_a_model_that_is_none_are_one_line(server):
    port = str(urlsplit(server.address).port)
    for options, message in ((["--port", port], "choose another --port"), (["./nowhere"], "nowhere")):
        command = [sys.executable, "phase4_scheduler/serve.py", *options]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 2 and message in ended.stderr and len(ended.stderr.splitlines()) <= 2


# ---------------------------------------------------------------------- the course's own client


def test_answers_come_in_the_order_of_the_requests_and_errors_are_told(server):
    bodies = [{"prompt": "Once upon a time", "max_tokens": n, "ignore_eos": True} for n in (3, 9, 6, 0)]
    *answers, wrong = asyncio.run(send_all(server.address, bodies))
    assert [a.usage["completion_tokens"] for a in answers] == [3, 9, 6]
    assert all(a.status == 200 and a.error is None and a.sent < a.times[0] <= a.ended for a in answers)
    assert wrong.status == 400 and "max_tokens" in wrong.error
    assert len(asyncio.run(send_all(server.address, bodies[1:2], cut_after=2))[0].times) == 2
    assert asyncio.run(send_all("http://127.0.0.1:9", bodies[:1]))[0].error.startswith("no connection")


def test_a_server_that_does_not_start_is_told():
    with pytest.raises(LabError, match="did not start"), running_server("--max-num-seqs", "0"):
        pass
