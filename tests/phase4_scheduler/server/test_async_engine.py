"""The API process's side of the engine, with a pipe in which the test plays the engine."""

import asyncio
import queue
from types import SimpleNamespace

from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.request import Request, RequestLimits
from phase4_scheduler.server.async_engine import AsyncEngine
from phase4_scheduler.server.engine_process import EngineLimits


class PlayedEngine(AsyncEngine):
    def connect(self):
        self.sent, self.messages = [], queue.Queue()
        self.messages.put(EngineLimits(RequestLimits(512), 100, EngineConfig()))
        process = SimpleNamespace(
            exitcode=0, is_alive=lambda: True, join=lambda timeout: None, terminate=lambda: None
        )
        return process, SimpleNamespace(send=self.sent.append, recv=self.messages.get)


def test_requests_that_come_during_a_step_all_take_part_in_the_next():
    """The engine says nothing meanwhile; those that come in one go are one message."""

    async def run():
        engine = PlayedEngine("tales", None, None)
        await engine.start()
        tasks = []
        for names in (["a", "b"], ["c"]):
            for name in names:
                outputs = engine.generate(Request(name, [1], SamplingParams()))
                tasks.append(asyncio.create_task(anext(outputs)))
            await asyncio.sleep(0.01)
        engine.end_streams()
        await asyncio.gather(*tasks, return_exceptions=True)
        engine.messages.put(None)  # no step: the reader ends
        return [[command.request_id for command in message] for message in engine.sent]

    assert asyncio.run(run()) == [["a", "b"], ["c"]]
