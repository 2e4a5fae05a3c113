"""Asks a real Prometheus what the queries in prometheus_2_42.json mean, on the series there, and keeps its answers.

For another query add a line with an empty result to that file first.

    python -m tests.phase4_scheduler.server.drills.record_prometheus FOLDER_WITH_PROMETHEUS_AND_PROMTOOL

Debian's package has both: apt-get download prometheus; dpkg -x prometheus_*.deb here; the folder is here/usr/bin.
"""

import json
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
    kept = json.loads(ANSWERS.read_text())
    series = kept["series"]
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
            answers = [a | {"result": ask(address, a["query"], a["at"])} for a in kept["answers"]]
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
