"""What a real Prometheus makes of the configuration and the alerts; and whether the dashboard shows something."""

import asyncio
import json
import math
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from labkit.catalog import text_of_phase
from labkit.paths import ROOT
from phase4_scheduler.server.client import running_server, send_all
from phase4_scheduler.server.drills import Recording, Scraper, query

MONITORING = ROOT / "phase4_scheduler" / "server" / "monitoring"
ALERT_TESTS = Path(__file__).with_name("alerts_test.yml")
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool: apt-get install prometheus"
)


def test_each_alert_names_a_row_of_the_runbook():
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    text = text_of_phase("phase4_scheduler")
    for rule in rules:
        number, row = re.match(r"(\d): ([^(;]+)", rule["annotations"]["runbook"]).groups()
        assert f"| **{number}** {row.strip()} |" in text, rule["alert"]


@needs_promtool
def test_each_alert_fires_when_it_should_and_only_then():
    ran = subprocess.run(["promtool", "test", "rules", ALERT_TESTS], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@needs_promtool
def test_prometheus_can_read_its_configuration():
    command = ["promtool", "check", "config", MONITORING / "prometheus.yml"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0 and "8 rules found" in ran.stdout, ran.stdout + ran.stderr


@pytest.mark.proof
def test_every_panel_of_the_dashboard_shows_something():
    """On what a Prometheus would have kept of a server with requests, by the course's own PromQL."""
    recording, began = Recording(), time.monotonic()
    body = {"prompt": "Once upon a time, " * 20, "max_tokens": 8, "ignore_eos": True}

    def now():
        return time.monotonic() - began

    with (
        running_server("--enable-mfu-metrics") as server,
        Scraper(recording, lambda: server.call("/metrics")[1], now),
    ):
        # The calls of HTTP are counted from the first one on, so their rate is known last.
        while not query(recording, "rate(http_requests_total[1m]) > 0", now()):
            answers = asyncio.run(send_all(server.address, [body] * 4))
            assert not [answer.error for answer in answers if answer.error]
            time.sleep(Scraper.EVERY)
    queries = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    values = {text: list(query(recording, text, now()).values()) for text in queries}
    assert [text for text, found in values.items() if not found or any(map(math.isnan, found))] == []
    # While we ask, no request is under way.
    still = re.compile("num_preemptions|num_requests|kv_cache_usage")
    assert [text for text, found in values.items() if not any(found) and not still.search(text)] == []
