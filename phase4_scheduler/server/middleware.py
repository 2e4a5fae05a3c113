"""What stands around the routes: who may call, how many answers are under way, and the metrics of HTTP."""

import hashlib
import secrets
from collections.abc import Collection, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_fastapi_instrumentator.metrics import Info
from prometheus_fastapi_instrumentator.metrics import default as instrument
from prometheus_fastapi_instrumentator.middleware import PrometheusInstrumentatorMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from labkit.errors import LabError
from labkit.foreign import visible
from phase4_scheduler.server.encoding import JsonResponse


class ApiKey:
    """Middleware: whatever takes a body needs `Authorization: Bearer KEY`, and so does all of /v1.

    vLLM guards /v1, /v2, /inference and /cohere: there any client can have texts tokenised.
    """

    GUARDED = ("/v1", "/tokenize", "/detokenize")

    def __init__(self, app: ASGIApp, key: str) -> None:
        self.app, self._digest = app, hashlib.sha256(key.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        guarded = scope["type"] == "http" and scope["path"].startswith(self.GUARDED)
        if guarded and scope["method"] != "OPTIONS":
            scheme, _, key = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
            matches = secrets.compare_digest(hashlib.sha256(key).digest(), self._digest)
            if scheme.lower() != b"bearer" or not matches:
                await JsonResponse({"error": "Unauthorized"}, 401)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def trusting(app: ASGIApp, names: Sequence[str]) -> ASGIApp:
    """The application for calls that name this machine, or one of these names, as Host.

    A web page whose name suddenly resolves to this machine (DNS rebinding) could read all answers; its browser sends that name.

    Raises:
        LabError: a pattern of names that is not like *.example.com.
    """
    here = ("localhost", "*.localhost", "127.0.0.1", "[::1]", *names)
    try:
        return TrustedHostMiddleware(app, here, www_redirect=False)
    except AssertionError as error:
        raise LabError(f"allowed hosts {', '.join(map(visible, names))}: {error}") from None


class CountLoad:
    """Middleware: how many answers are under way, for /load. A stream is until it has ended, or its client has gone.

    Source: vllm/entrypoints/serve/utils/api_utils.py, load_aware_call.
    """

    def __init__(self, app: ASGIApp, server: Any, paths: Collection[str]) -> None:
        self.app, self.server, self.paths = app, server, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answers = scope["type"] == "http" and scope["path"] in self.paths
        self.server.load += answers
        try:
            await self.app(scope, receive, send)
        finally:
            self.server.load -= answers


# Asked by machines all the time: not counted, as in vLLM.
UNCOUNTED = ("/health", "/live", "/load", "/metrics", "/ping", "/version")
# A client may make up names, and each would be a series for ever.
METHODS = frozenset(("GET", "HEAD", "OPTIONS", "POST"))


def http_metrics(app: ASGIApp, registry: CollectorRegistry) -> ASGIApp:
    """Middleware: calls, their sizes and durations, as prometheus-fastapi-instrumentator counts them for vLLM."""
    count = instrument(registry=registry)

    def with_known_method(info: Info) -> None:
        info.method = info.method if info.method in METHODS else "other"
        count(info)

    return PrometheusInstrumentatorMiddleware(
        app,
        excluded_handlers=[f"^{path}$" for path in UNCOUNTED],
        instrumentations=[with_known_method],
        registry=registry,
    )
