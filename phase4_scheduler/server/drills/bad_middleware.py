"""Middleware with two frequent mistakes.

lab serve --middleware phase4_scheduler.server.drills.bad_middleware.AskTheOldDirectory
lab serve --middleware phase4_scheduler.server.drills.bad_middleware.KeepTraces
"""

import time
from collections import deque

from starlette.types import ASGIApp, Receive, Scope, Send


class AskTheOldDirectory:
    """Looks up each caller in a slow directory, and waits without `await`.

    asyncio runs one coroutine at a time. A coroutine that calls `time.sleep` (or a database library without
    `await`) blocks the event loop: until it returns, the server reads no request and sends no token.
    """

    SECONDS = 0.2  # of each look-up

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if is_call(scope):
            time.sleep(self.SECONDS)
        await self.app(scope, receive, send)


class KeepTraces:
    """Keeps a trace of each request, for later inspection. (Here at most 600 MB of them: it is a drill.)"""

    TRACE_BYTES = 8 * 2**20

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.traces: deque[bytes] = deque(maxlen=75)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if is_call(scope):
            self.traces.append(b"x" * self.TRACE_BYTES)
        await self.app(scope, receive, send)


def is_call(scope: Scope) -> bool:
    return scope["type"] == "http" and scope["path"].startswith("/v1")
