"""Two mistakes that are often made in what is put around a server.

lab serve --middleware phase4_scheduler.server.drills.bad_middleware.AskTheOldDirectory
lab serve --middleware phase4_scheduler.server.drills.bad_middleware.KeepTraces
"""

import time
from collections import deque

from starlette.types import ASGIApp, Receive, Scope, Send


class AskTheOldDirectory:
    """Looks each caller up somewhere slow, and waits without `await`.

    asyncio runs one coroutine at a time. One that sleeps with `time.sleep` (or asks a database with a library that
    knows no `await`) blocks the event loop: no request is read, and no token is sent, until it is done.
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
