"""Send every shape to a server and keep what it answers: `vllm_0_32.json` is vLLM's side of the comparison.

Start vLLM (the CPU build will do; float32, so that both sides choose the same tokens), once with the options of each of
SERVERS, one after the other:

    SERVE="python -m vllm.entrypoints.openai.api_server --model labkit/models/tales --served-model-name tales
           --port 8123 --max-model-len 512 --dtype float32 --block-size 32"
    HF_HUB_OFFLINE=1 VLLM_CPU_KVCACHE_SPACE=1 $SERVE
    python -m tests.phase4_scheduler.server.record_vllm http://localhost:8123 plain --metrics
    HF_HUB_OFFLINE=1 VLLM_CPU_KVCACHE_SPACE=1 $SERVE --api-key secret
    python -m tests.phase4_scheduler.server.record_vllm http://localhost:8123 guarded

`--metrics` wants a server that has answered nothing yet: its counters start at 0.
"""

import argparse
import json
import re
from pathlib import Path

import requests

from tests.phase4_scheduler.server.shapes import JSON, METRICS_LOAD, SERVERS, SHAPES

ANSWERS = Path(__file__).with_name("vllm_0_32.json")
METRICS = Path(__file__).with_name("vllm_0_32_metrics.txt")
LONG = ("/metrics", "/openapi.json", "/docs")  # answers that are not kept


def ask(base_url, shape):
    """Send one shape; return its answer: status, content type, and the body as JSON, text, or a list of events."""
    body, headers = shape.body, dict(shape.headers)
    if body is not None:
        headers = JSON | headers
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {name: value for name, value in headers.items() if value}
    response = requests.request(
        shape.method, base_url + shape.path, data=body, headers=headers, timeout=300, allow_redirects=False
    )
    text, kind = response.content.decode(), response.headers.get("content-type")
    answer = {"status": response.status_code, "content_type": kind}
    if kind and kind.startswith("text/event-stream"):
        answer["events"] = [event(line) for line in text.split("\n\n") if line]
    elif text and kind and kind.startswith("application/json") and shape.path not in LONG:
        answer["body"] = scrub(json.loads(text))
    elif shape.path not in LONG:
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


def save(version, answers):
    """One answer a line, in the order of the shapes."""
    lines = [f"{json.dumps(s.name)}: {json.dumps(answers[s.name])}" for s in SHAPES if s.name in answers]
    text = f'{{"vllm": "{version}",\n"answers": {{\n' + ",\n".join(lines) + "\n}}\n"
    ANSWERS.write_text(text)


def record_metrics(base_url):
    """Ask for what METRICS_LOAD lists, one after the other, then scrape."""
    for shape in METRICS_LOAD:
        ask(base_url, shape)
    load = "".join(f"# {shape.name}\n" for shape in METRICS_LOAD)
    METRICS.write_text(load + requests.get(f"{base_url}/metrics").text)


def main():
    parser = argparse.ArgumentParser(description="Record a server's answers to every shape.")
    parser.add_argument("url")
    parser.add_argument("server", choices=SERVERS)
    parser.add_argument("--metrics", action="store_true", help="first record /metrics after a known load")
    parser.add_argument("--new", action="store_true", help="ask only what has no answer yet")
    args = parser.parse_args()
    if args.metrics:
        record_metrics(args.url)
    answers = json.loads(ANSWERS.read_text())["answers"] if ANSWERS.exists() else {}
    for shape in SHAPES:
        if shape.server == args.server and not (args.new and shape.name in answers):
            answers[shape.name] = ask(args.url, shape)
    save(requests.get(f"{args.url}/version").json()["version"], answers)


if __name__ == "__main__":
    main()
