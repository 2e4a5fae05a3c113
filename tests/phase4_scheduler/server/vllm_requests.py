"""Asks a server what vLLM was asked: `vllm_0_32.json` is vLLM's side of the comparison.

The file holds 871 requests by name, each with vLLM's answer: every endpoint, every option, right and wrong. One more is written
there with what `ask` finds at a vLLM that was started with the options of its entry in SERVERS. The requests decode greedily
(temperature 0, or `top_k=1` where vLLM refuses that), so that texts can be compared; only those marked "sampled" draw at random.

    python -m vllm.entrypoints.openai.api_server --model labkit/models/tales --served-model-name tales
        --port 8123 --max-model-len 512 --dtype float32 --block-size 32          (HF_HUB_OFFLINE=1 VLLM_CPU_KVCACHE_SPACE=1)

The CPU build will do; in float32 both sides choose the same tokens. `vllm_0_32_metrics.txt` is the page of a server that had
answered nothing but what `metrics_load` lists.
"""

import json
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import requests

ANSWERS = Path(__file__).with_name("vllm_0_32.json")
METRICS = Path(__file__).with_name("vllm_0_32_metrics.txt")
LONG = ("/metrics", "/openapi.json", "/docs")  # answers that are not kept
SERVERS = {
    "plain": (),
    "guarded": ("--api-key", "secret"),
    "with tools": ("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
}
"""Options of the servers that are asked."""


@dataclass(frozen=True)
class Asked:
    """A request.

    Attributes:
        body: is sent as JSON. raw: a text that is sent as it is, a byte for each character, and how many times.
        server: which of SERVERS gets it. sampled: whether its answer is drawn at random.
    """

    method: str
    path: str
    name: str = ""
    body: object = None
    raw: tuple[str, int] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    server: str = "plain"
    sampled: bool = False

    @property
    def data(self) -> bytes | None:
        if self.raw is not None:
            return self.raw[0].encode("latin-1") * self.raw[1]
        return None if self.body is None else json.dumps(self.body).encode()


@cache
def recorded():
    """By name: the request, and vLLM's answer."""
    found = json.loads(ANSWERS.read_text())["recorded"]
    return {name: (Asked(name=name, **one["request"]), one["answer"]) for name, one in found.items()}


def metrics_load():
    """What is asked, one after the other, before /metrics are read."""
    lines = METRICS.read_text().splitlines()
    return [Asked(**json.loads(line[2:])) for line in lines if line.startswith("# {")]


def ask(base_url, asked):
    """Send a request; return its answer: status, content type, and the body as JSON, text, or a list of events."""
    data = asked.data
    headers = ({} if data is None else {"content-type": "application/json"}) | asked.headers
    headers = {name: value for name, value in headers.items() if value}
    response = requests.request(
        asked.method, base_url + asked.path, data=data, headers=headers, timeout=300, allow_redirects=False
    )
    text, kind = response.content.decode(), response.headers.get("content-type")
    answer = {"status": response.status_code, "content_type": kind}
    if kind and kind.startswith("text/event-stream"):
        answer["events"] = [event(line) for line in text.split("\n\n") if line]
    elif text and kind and kind.startswith("application/json") and asked.path not in LONG:
        answer["body"] = scrub(json.loads(text))
    elif asked.path not in LONG:
        answer["body"] = text
    return answer


def event(text):
    """`data: {...}` as JSON, also behind a line `event: ...`; anything else, such as `data: [DONE]`, as it is."""
    before, mark, data = text.partition("data: {")
    return scrub(json.loads("{" + data)) if mark and not before.strip().count("\n") else text


def scrub(value, key=None):
    """Put a type where the value is another one each time (ids, times), and round the rest to 6 digits."""
    if isinstance(value, dict):
        return {k: scrub(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [scrub(v) for v in value]
    if key in ("id", "item_id") and isinstance(value, str):
        return re.sub("[0-9a-f]{8}[0-9a-f-]*", "<hex>", value)
    if key in ("created", "created_at", "completed_at"):
        return f"<{type(value).__name__}>"
    if key == "system_fingerprint" and value is not None:
        return "<str>"
    return round(value, 6) if isinstance(value, float) else value
