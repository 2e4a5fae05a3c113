"""The requests that both servers get, by name: every endpoint, every option, every mistake."""

from dataclasses import dataclass

from tests.phase4_scheduler.server import fields
from tests.phase4_scheduler.server.fields import ABSENT, CHAT, COMPLETION, TOKENIZE, USAGE

JSON = {"content-type": "application/json"}
SERVERS = {
    "plain": (),
    "guarded": ("--api-key", "secret"),
    "with tools": ("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
}
"""Options of the servers that are asked."""


@dataclass(frozen=True)
class Shape:
    name: str
    method: str
    path: str
    body: object = None  # JSON; bytes are sent as they are
    headers: tuple[tuple[str, str], ...] = ()
    server: str = "plain"  # which of SERVERS gets it
    sampled: bool = False


def posts(label, path, base, table, **more):
    """One shape for each row of a table: `base` with the row's fields."""
    for name, row in table.items():
        body = {key: value for key, value in (base | row).items() if value is not ABSENT}
        yield Shape(f"{label}: {name}", "POST", path, body, **more)


def without_bodies():
    """Paths and methods."""
    served = ["/v1/models", "/health", "/version", "/load", "/ping", "/metrics", "/v1/completions"]
    served += ["/v1/chat/completions", "/tokenize", "/detokenize", "/health?deep=1"]
    served += ["/v1/responses", "/v1/responses/resp_1", "/openapi.json", "/docs"]
    unknown = [
        "/",
        "/v1",
        "/nothing",
        "/v1/nothing",
        "/v1/models/tales",
        "/v1/models/",
        "/health/",
        "//health",
    ]
    for path in served + unknown:
        yield Shape(f"get {path}", "GET", path)
    for path in [*served[:6], "/nothing"]:
        yield Shape(f"post {path}", "POST", path)
    yield Shape("head /health", "HEAD", "/health")
    yield Shape("head /metrics", "HEAD", "/metrics")
    yield Shape("put /v1/completions", "PUT", "/v1/completions", COMPLETION)
    yield Shape("delete /v1/models", "DELETE", "/v1/models")
    yield Shape("options /v1/completions", "OPTIONS", "/v1/completions")
    preflight = (("origin", "http://localhost"), ("access-control-request-method", "POST"))
    yield Shape("preflight /v1/completions", "OPTIONS", "/v1/completions", headers=preflight)


def odd_bodies():
    """What is not a JSON object, or not announced as one."""
    bodies = {
        "an empty body": b"",
        "half an object": b'{"model": "tales", ',
        "a trailing comma": b'{"n": 1,}',
        "a list": ["Once"],
        "a string": "Once",
        "a number": b"5",
        "null": b"null",
        "an empty object": {},
        "not utf-8": b'{"prompt": "\xff"}',
        "deep": b"[" * 100_000,
    }
    kinds = ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-8"]
    kinds += ["APPLICATION/JSON", ""]
    working = {"/v1/completions": COMPLETION, "/v1/chat/completions": CHAT, "/tokenize": TOKENIZE}
    for path, works in working.items():
        for name, body in bodies.items():
            yield Shape(f"{path}: {name}", "POST", path, body)
        for kind in kinds:
            yield Shape(f"{path}: content type {kind!r}", "POST", path, works, (("content-type", kind),))
    text = b'{"model": "tales", "prompt": "Once", "max_tokens": 2, "temperature": %s}'
    for value in [b"NaN", b"Infinity", b"1e400", b'0, "temperature": 0.0']:
        yield Shape(f"/v1/completions: temperature {value.decode()}", "POST", "/v1/completions", text % value)
    named = (("x-request-id", "mine"),)
    yield Shape("/v1/completions: request id in a header", "POST", "/v1/completions", COMPLETION, named)
    yield Shape("/v1/chat/completions: request id in a header", "POST", "/v1/chat/completions", CHAT, named)


def with_api_key():
    """The same to a server that wants a key."""
    keys = {
        "no key": "",
        "the key": "Bearer secret",
        "the key, small letters": "bearer secret",
        "a wrong key": "Bearer guess",
        "an empty key": "Bearer ",
        "the key alone": "secret",
        "basic": "Basic secret",
    }
    asked = [("GET", "/v1/models", None), ("POST", "/v1/completions", COMPLETION), ("GET", "/health", None)]
    asked += [("POST", "/tokenize", TOKENIZE), ("GET", "/v1/nothing", None), ("GET", "/v1nothing", None)]
    asked += [("GET", "/version", None), ("GET", "/metrics", None), ("OPTIONS", "/v1/models", None)]
    for method, path, body in asked:
        for name, key in keys.items():
            headers = (("authorization", key),) if key else ()
            yield Shape(f"{method.lower()} {path} with {name}", method, path, body, headers, "guarded")


SHAPES = [
    *posts("completions", "/v1/completions", COMPLETION, fields.BOTH | fields.COMPLETIONS),
    *posts("completions", "/v1/completions", COMPLETION, fields.SAMPLED, sampled=True),
    *posts("chat", "/v1/chat/completions", CHAT, fields.BOTH | fields.CHATS),
    *posts("chat", "/v1/chat/completions", CHAT, fields.SAMPLED, sampled=True),
    *posts(
        "tools",
        "/v1/chat/completions",
        CHAT | {"tools": fields.TOOLS},
        fields.TOOL_CALLS,
        server="with tools",
    ),
    *posts("responses", "/v1/responses", fields.RESPONSE, fields.RESPONSES),
    *posts("tokenize", "/tokenize", TOKENIZE, fields.TOKENIZES),
    *posts("detokenize", "/detokenize", fields.DETOKENIZE, fields.DETOKENIZES),
    *without_bodies(),
    *odd_bodies(),
    *with_api_key(),
]

# One after the other, to a server that has answered nothing yet: then its /metrics are known.
LONG = {"prompt": [44] * 100}
LOAD = {
    "8 tokens for 4": {},
    "a prompt of 100 tokens": LONG,
    "the same prompt, now in the prefix cache": LONG,
    "a stop string": {"stop": "he"},
    "two of each": fields.TWO,
    "two prompts in a stream": fields.PROMPTS | USAGE,
    "a mistake": {"temperature": -1},
}
METRICS_LOAD = [
    *posts("load", "/v1/completions", COMPLETION, LOAD),
    *posts("load", "/v1/chat/completions", CHAT, {"a chat": {}}),
]
