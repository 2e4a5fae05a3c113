"""Asks a real Prometheus what queries mean, and keeps its answers for test_promql.py.

    python -m tests.phase4_scheduler.server.drills.record_prometheus FOLDER_WITH_PROMETHEUS_AND_PROMTOOL

Debian's package has both: apt-get download prometheus; dpkg -x prometheus_*.deb here; the folder is here/usr/bin.
"""

import json
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

ANSWERS = Path(__file__).with_name("prometheus_2_42.json")
START = 1_800_000_000.0  # of the recording's clock: Prometheus wants dates

QUERIES = """
vllm:running
vllm:running{engine="1"}
vllm:running{engine!="1"}
vllm:running{engine=~"0|7"}
vllm:running{engine!~"0.*"}
{__name__="vllm:running", engine="0"}
vllm:absent
-vllm:running
vllm:running + 1
2 * vllm:running - 3 / 4
vllm:running / 0
vllm:running - vllm:running
vllm:running / vllm:tokens_total
vllm:running > 4
4 < vllm:running
vllm:running > bool 4
vllm:running >= vllm:running
vllm:running != vllm:running
1 > bool 2
(1 + 2) * 3 / 4
rate(vllm:tokens_total[10s])
rate(vllm:tokens_total[3s])
rate(vllm:tokens_total[1s])
rate(vllm:tokens_total[100s])
rate(vllm:restarted_total[20s])
rate(vllm:young_total[60s])
rate(vllm:flat_total[10s])
rate(vllm:silent_total[60s])
increase(vllm:tokens_total[10s])
increase(vllm:restarted_total[20s])
increase(vllm:tokens_total[10s] offset 7s)
vllm:running offset 10s
sum(rate(vllm:tokens_total[10s]))
sum by (kind) (rate(vllm:tokens_total[10s]))
sum without (kind) (rate(vllm:tokens_total[10s]))
avg(vllm:running)
max by (engine) (vllm:running)
min(vllm:running)
count(vllm:running > 3)
avg_over_time(vllm:running[10s])
max_over_time(vllm:running[10s])
min_over_time(vllm:running[10s])
rate(vllm:seconds_sum[10s]) / rate(vllm:seconds_count[10s])
rate(vllm:seconds_sum[10s]) / rate(vllm:seconds_count[10s]) > 0.1
1 - rate(vllm:seconds_bucket{le="0.5"}[10s]) / ignoring(le) rate(vllm:seconds_count[10s])
rate(vllm:seconds_bucket{le="0.5"}[10s]) / on(engine) rate(vllm:seconds_count[10s])
rate(vllm:seconds_bucket{le="0.5"}[10s]) / rate(vllm:seconds_count[10s])
sum(vllm:tokens_total) / sum(vllm:seconds_count)
vllm:running > 3 and vllm:running < 6
vllm:running > 3 or vllm:running{engine="1"}
vllm:running unless vllm:running > 4
vllm:tokens_total and on(engine) vllm:running > 4
vllm:tokens_total unless ignoring(kind) vllm:running > 4
vllm:running > 0 and vllm:tokens_total
""".strip().splitlines()


def make_series() -> list[dict]:
    """Counters and gauges, scraped about every half second: with restarts, a late birth, and one that falls silent."""
    rng = random.Random(4)
    times = [round(i * 0.5 + rng.uniform(0, 0.03), 3) for i in range(80)]
    series = []

    def keep(labels: dict[str, str], values: list[float], when: list[float]) -> None:
        series.append({"labels": labels, "samples": [list(pair) for pair in zip(when, values)]})

    def growing(step) -> list[float]:
        values = [0.0]
        while len(values) < len(times):
            values.append(round(values[-1] + step(), 3))
        return values

    for engine in "01":
        keep({"__name__": "vllm:running", "engine": engine}, [float(rng.randrange(9)) for _ in times], times)
        for kind in ("prompt", "answer"):
            labels = {"__name__": "vllm:tokens_total", "engine": engine, "kind": kind}
            keep(labels, [v + 40 for v in growing(lambda: rng.randrange(50))], times)
        counts = growing(lambda: rng.randrange(4))
        keep({"__name__": "vllm:seconds_count", "engine": engine}, counts, times)
        keep({"__name__": "vllm:seconds_sum", "engine": engine}, [round(c * 0.13, 3) for c in counts], times)
        below = [float(int(c * 0.8)) for c in counts]
        keep({"__name__": "vllm:seconds_bucket", "engine": engine, "le": "0.5"}, below, times)
    restarted = growing(lambda: rng.randrange(20))
    keep({"__name__": "vllm:restarted_total"}, restarted[:60] + restarted[:20], times)
    keep({"__name__": "vllm:young_total"}, [5.0 * i + 2 for i in range(20)], times[60:])
    keep({"__name__": "vllm:flat_total"}, [7.0] * len(times), times)
    keep({"__name__": "vllm:silent_total"}, growing(lambda: 3.0)[:30], times[:30])
    return series


def openmetrics(series: list[dict]) -> str:
    lines = []
    for one in sorted(series, key=lambda s: s["labels"]["__name__"]):
        labels = dict(one["labels"])
        name = labels.pop("__name__")
        pairs = ",".join(f'{k}="{v}"' for k, v in labels.items())
        lines += [f"{name}{{{pairs}}} {value} {START + t:.3f}" for t, value in one["samples"]]
    return "\n".join([*lines, "# EOF", ""])


def ask(address: str, text: str, at: float) -> list:
    """[[labels, value], ...], values as Prometheus writes them."""
    asked = urllib.parse.urlencode({"query": text, "time": f"{START + at:.3f}"})
    with urllib.request.urlopen(f"{address}/api/v1/query?{asked}") as response:
        data = json.load(response)["data"]
    if data["resultType"] == "scalar":
        return [[{}, data["result"][1]]]
    return [[entry["metric"], entry["value"][1]] for entry in data["result"]]


def main(tools: Path) -> None:
    series = make_series()
    with tempfile.TemporaryDirectory() as folder:
        text, store = Path(folder) / "series.txt", Path(folder) / "store"
        text.write_text(openmetrics(series))
        subprocess.run(
            [tools / "promtool", "tsdb", "create-blocks-from", "openmetrics", text, store], check=True
        )
        config = Path(folder) / "prometheus.yml"
        config.write_text("scrape_configs: []\n")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        server = subprocess.Popen(
            [tools / "prometheus", f"--config.file={config}", f"--storage.tsdb.path={store}",
             "--storage.tsdb.retention.time=100y", f"--web.listen-address=127.0.0.1:{port}"],
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            address = f"http://127.0.0.1:{port}"
            while True:
                try:
                    urllib.request.urlopen(f"{address}/-/ready")
                    break
                except (urllib.error.URLError, ConnectionError):
                    time.sleep(0.1)
            answers = [
                {"query": q, "at": at, "result": ask(address, q, at)} for q in QUERIES for at in (39.6, 25.25)
            ]
        finally:
            server.terminate()
            server.wait()
    version = subprocess.run(
        [tools / "prometheus", "--version"], capture_output=True, text=True
    ).stdout.split("\n")[0]
    body = ",\n".join(json.dumps(entry) for entry in answers)
    samples = ",\n".join(json.dumps(one) for one in series)
    ANSWERS.write_text(
        f'{{"version": {json.dumps(version)},\n"series": [\n{samples}],\n"answers": [\n{body}]}}\n'
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
