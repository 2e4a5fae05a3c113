"""The engine behind HTTP: a process that only steps, and one that speaks OpenAI's protocol."""

from phase4_scheduler.server.app import create_app
from phase4_scheduler.server.async_engine import AsyncEngine, EngineDeadError, QueueFullError

__all__ = ["AsyncEngine", "EngineDeadError", "QueueFullError", "create_app"]
