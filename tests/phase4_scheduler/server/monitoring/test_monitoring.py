"""What a real Prometheus makes of the configuration, the alerts and the dashboard."""

import asyncio
import json
import math
import random
import re
import shutil
import socket
import subprocess
import urllib.parse
from contextlib import suppress
from pathlib import Path

import pytest
import requests
import yaml

from labkit.catalog import text_of_phase
from labkit.paths import ROOT
from phase4_scheduler.server.client import running_server, send_all

MONITORING = ROOT / "phase4_scheduler" / "server" / "monitoring"
ALERT_TESTS = Path(__file__).with_name("alerts_test.yml")
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def tool():
    """tool("prometheus") is where that program is, or a skip that says what is missing."""

    def find(name):
        path = shutil.which(name)
        if path is None:
            pytest.skip(f"needs {name}: apt-get install prometheus")
        return path

    return find


def test_each_alert_names_a_row_of_the_runbook():
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    text = text_of_phase("phase4_scheduler")
    for rule in rules:
        number, row = re.match(r"(\d): ([^(;]+)", rule["annotations"]["runbook"]).groups()
        assert f"| **{number}** {row.strip()} |" in text, rule["alert"]


def test_each_alert_fires_when_it_should_and_only_then(tool):
    ran = subprocess.run([tool("promtool"), "test", "rules", ALERT_TESTS], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_prometheus_can_read_its_configuration(tool):
    command = [tool("promtool"), "check", "config", MONITORING / "prometheus.yml"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0 and "8 rules found" in ran.stdout, ran.stdout + ran.stderr


# ---------------------------------------------------------------------- a live run


def free_port():
    """Below those that Linux lends to connections (32768): none of them takes it before Prometheus does."""
    for port in random.SystemRandom().sample(range(20_000, 30_000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


@pytest.fixture(scope="module")
def prometheus(tool, tmp_path_factory):
    """prometheus(query): the values of an instant query, of a Prometheus that watches a server with requests."""
    folder, address = tmp_path_factory.mktemp("prometheus"), f"127.0.0.1:{free_port()}"
    shutil.copy(MONITORING / "alerts.yml", folder)
    config = (MONITORING / "prometheus.yml").read_text(encoding="utf-8").replace("5s", "500ms")
    options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    options += [f"--web.listen-address={address}", "--log.level=error"]
    body = {"prompt": "Once upon a time, " * 20, "max_tokens": 8, "ignore_eos": True}

    def query(expr):
        answer = requests.get(f"http://{address}/api/v1/query", {"query": expr}, timeout=60)
        assert answer.status_code in (200, 503), f"{expr}: {answer.text}"  # 503: not ready yet
        found = answer.json()["data"]["result"] if answer.ok else []
        return [float(sample["value"][1]) for sample in found]

    def is_watching():
        """The calls of HTTP are counted from the first one on, so their rate is known last."""
        assert process.poll() is None, "Prometheus has ended"
        with suppress(requests.ConnectionError):
            return any(query("rate(http_requests_total[1m]) > 0"))

    with running_server("--enable-mfu-metrics") as server:
        watched = urllib.parse.urlsplit(server.address).netloc
        (folder / "prometheus.yml").write_text(config.replace("127.0.0.1:8000", watched), encoding="utf-8")
        process = subprocess.Popen([tool("prometheus"), *options])
        try:
            while not is_watching():
                answers = asyncio.run(send_all(server.address, [body] * 4))
                assert not [answer.error for answer in answers if answer.error]
            yield query
        finally:
            process.terminate()
            process.wait(timeout=30)


@pytest.mark.proof
def test_every_panel_of_the_dashboard_shows_something(prometheus):
    queries = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    values = {query: prometheus(query) for query in queries}
    assert [query for query, found in values.items() if not found or any(map(math.isnan, found))] == []
    # While we ask, nobody is under way.
    still = re.compile("num_preemptions|num_requests|kv_cache_usage")
    assert [query for query, found in values.items() if not any(found) and not still.search(query)] == []


@pytest.mark.proof
def test_no_alert_disturbs_a_healthy_run(prometheus):
    assert prometheus("up") == [1]
    assert prometheus('ALERTS{alertstate="firing"}') == []
