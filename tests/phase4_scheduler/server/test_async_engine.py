"""The API process's side of the engine, by itself."""

import asyncio

from phase4_scheduler.server.async_engine import AsyncEngine, EngineDeadError


def test_who_watches_a_dead_engine_is_told_at_once():
    async def watch(engine):
        return [event async for event in engine.watch()]

    engine = AsyncEngine("tales", None, None)
    engine.dead = EngineDeadError(engine.OBITUARY)
    assert asyncio.run(asyncio.wait_for(watch(engine), 10)) == []
