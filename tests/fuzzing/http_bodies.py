"""An attacker of the server's bodies: large, deep, wide, wrong and valid ones, in any field.

Whatever a client sends, it is read or refused in a few words, and memory grows with the bytes that were sent, not with what
they describe.
"""

import json
import random
import tracemalloc

from starlette.exceptions import HTTPException

from phase4_scheduler.server.app import BODIES
from phase4_scheduler.server.bodies import longest_body, read_body
from phase4_scheduler.server.protocol import ApiError

CONTEXT = 1024
LIMIT = longest_body(CONTEXT)  # bytes; the server drops what is longer
BYTES_PER_BYTE, SMALL = 20, 2**20  # memory: so much per byte of the body, and what any request may take
LONGEST_REFUSAL = 2000  # characters
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
    value, what = make_value(rng, int(rng.choice([0.01, 0.1, 0.5, 0.95]) * LIMIT))
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


def try_body(rng: random.Random) -> list[str]:
    """Read one body as the server does. Returns what did not hold."""
    path, raw, what = make_body(rng)
    tracemalloc.start()
    try:
        read_body(BODIES[path], raw, CONTEXT)
        refusal = ""
    except (ApiError, HTTPException) as error:
        refusal = str(error)
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    findings = []
    if len(refusal) > LONGEST_REFUSAL:
        findings.append(f"an error of {len(refusal):,} characters")
    if most > SMALL + BYTES_PER_BYTE * len(raw):
        findings.append(f"{most:,} bytes of memory for a body of {len(raw):,}")
    return [f"{what}: {finding}" for finding in findings]
