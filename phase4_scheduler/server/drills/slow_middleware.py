"""A mistake that is made often: a coroutine that waits without `await`.

    lab serve --middleware phase4_scheduler.server.drills.slow_middleware.AskTheOldDirectory

asyncio runs one coroutine at a time. One that sleeps with `time.sleep` (or asks a database with a library that knows
no `await`) gives nobody else a turn: no request is read, and no token is sent, until it is done.
"""

import time

from starlette.types import ASGIApp, Receive, Scope, Send

SECONDS = 0.2  # of each look-up


class AskTheOldDirectory:
    """Middleware: looks each caller up somewhere slow, and blocks the event loop meanwhile."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1"):
            time.sleep(SECONDS)
        await self.app(scope, receive, send)
