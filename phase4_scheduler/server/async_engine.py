"""The API process's side of the engine: requests go in from many coroutines, each gets its own stream of outputs.

Source: vllm/v1/engine/async_llm.py and core_client.py.
"""

import asyncio
import contextlib
import logging
import subprocess
import sys
import threading
import time
import traceback
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from phase1_tokens_embeddings.tokens import Tokenizer
from phase2_attention_kvcache.model import SamplingParams
from phase2_attention_kvcache.model.config import ModelConfig
from phase4_scheduler.engine.core import EngineCoreOutput, EngineDeadError
from phase4_scheduler.engine.engine import make_request
from phase4_scheduler.engine.output_processor import OutputProcessor, ParentRequest
from phase4_scheduler.engine.outputs import RequestOutput
from phase4_scheduler.engine.request import Request
from phase4_scheduler.features.recording import Event
from phase4_scheduler.server.engine_process import (
    MOST_COMMANDS,
    Add,
    EngineArgs,
    EngineLimits,
    Finish,
    StepMessage,
    start_engine,
)
from phase4_scheduler.server.metrics import Metrics

LONG_TEXT = 2**16  # characters
TOKENIZE = str(Path(__file__).with_name("tokenize_stdin.py"))
MOST_UNREAD = 10_000  # unread steps kept for a client of /events


class QueueFullError(RuntimeError):
    """As many answers are under way as may be."""


class Stream:
    """Outputs of one request on their way to its reader: the request's `on_output`. A slow reader finds all that came meanwhile
    in one piece."""

    def __init__(self) -> None:
        self._pending: RequestOutput | None = None
        self._error: BaseException | None = None
        self._new = asyncio.Event()

    def __call__(self, output: RequestOutput) -> None:
        if self._pending is None:
            self._pending = output
        else:
            self._pending.add(output)
        self._new.set()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._new.set()

    async def get(self) -> RequestOutput:
        await self._new.wait()
        self._new.clear()
        if self._pending is not None:
            output, self._pending = self._pending, None
            if self._error is not None:
                self._new.set()
            return output
        raise self._error


class AsyncEngine:
    """An engine in a process of its own.

    Args:
        model: name or folder. config: its config.json, read. tokenizer: see `LLMEngine`.
        max_num_queued_reqs: refuse more answers than this under way, waiting or running; None: no limit.
        enable_prompt_tokens_details: whether usage says how many prompt tokens were found in the prefix cache.
        enable_mfu_metrics: whether the metrics estimate operations and bytes of each step (MFU: model FLOPs utilisation).
        record_steps: whether `watch` tells what each step did.
        model_name: as clients and metrics call it.

    Use `await start()` first, and `stop()` at the end.
    """

    ENDED = "the engine process has ended: start the server again"

    def __init__(
        self,
        model: str,
        config: ModelConfig,
        tokenizer: Tokenizer | None,
        *,
        dtype: str = "bfloat16",
        device: str = "auto",
        model_name: str = "",
        max_num_queued_reqs: int | None = None,
        enable_prompt_tokens_details: bool = False,
        enable_mfu_metrics: bool = False,
        record_steps: bool = False,
        **settings: Any,
    ) -> None:
        self.model_config, self.tokenizer = config, tokenizer
        self._args = EngineArgs(model, dtype, device, settings, enable_mfu_metrics, record_steps)
        self.record_steps = record_steps
        self._watchers: set[asyncio.Queue[Event | None]] = set()
        self.max_num_queued_reqs = max_num_queued_reqs
        self.enable_prompt_tokens_details = enable_prompt_tokens_details
        self.longest_token = max(map(len, tokenizer.token_bytes), default=1) if tokenizer else 1
        self.model_name = model_name or model
        self.metrics: Metrics | None = None
        self.output_processor = OutputProcessor()
        self.limits: EngineLimits | None = None
        self.dead: EngineDeadError | None = None
        self.last_step = StepMessage()  # what the engine said last
        self.num_generation_tokens = 0
        self.process: Any = None
        self._num_ids = 0
        self._long_text = asyncio.Semaphore(1)  # long texts wait for each other
        self._commands: list[Add | Finish] = []
        self._sender = ThreadPoolExecutor(1, "engine commands")  # one thread, so they keep their order
        self._sends = False  # `_send` comes next: what gathers until then is one message
        self.tell: Callable[[str], None] = lambda line: None  # is told how the start goes on

    async def start(self) -> None:
        """Start the engine process, and wait until it is ready.

        Raises:
            ValueError, LabError: what it could not be started with.
        """
        self._loop = asyncio.get_running_loop()
        self.process, self._pipe = self.connect()
        try:
            while isinstance(first := await asyncio.to_thread(self._pipe.recv), str):
                self.tell(first)
        except EOFError:
            raise EngineDeadError("the engine process ended while it was starting") from None
        if isinstance(first, Exception):
            raise first
        self.limits, self.metrics = first, self.make_metrics(first)
        threading.Thread(target=self._read, name="engine outputs", daemon=True).start()

    def connect(self) -> tuple[Any, Any]:
        """The engine's process and its pipe. (A Ray actor is another kind of both: `ray_fleet.py`.)"""
        return start_engine(self._args)

    def make_metrics(self, limits: EngineLimits) -> Metrics:
        return Metrics(self.model_name, limits)

    @property
    def is_alive(self) -> bool:
        return self.dead is None and self.process.is_alive()

    def stop(self) -> None:
        """End the engine process, whatever it is doing."""
        if self.dead is None:
            self.dead = EngineDeadError("the server is shutting down")
        if self.process is not None:
            self.process.terminate()
            self.process.join(timeout=5)
            if self.process.is_alive():  # busy where it hears of no signal
                self.process.kill()

    # ------------------------------------------------------------------ to and from the engine

    def _read(self) -> None:
        """In a thread of its own: wait for the engine's messages."""
        try:
            while True:
                message = self._pipe.recv()
                self._loop.call_soon_threadsafe(self._take, message)
        except Exception:  # the process has ended, or the loop, or what came cannot be read
            self.process.join(timeout=1)  # its exit code is known a moment after its pipe has closed
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._die)

    def _take(self, message: StepMessage) -> None:
        """A step's outputs, each to its own stream."""
        self.last_step = message
        self._tell_watchers(message.events)
        now = time.perf_counter()
        for request_id, reason in message.refused:
            self._fail(request_id, reason)  # what the API process checks, the core takes
        for new in message.outputs:
            try:
                self._hand_out(new, message.ended, now)
            except Exception as error:  # a mistake in here ends this request; the others get theirs
                traceback.print_exc()
                self._fail(new.request_id, f"{type(error).__name__}: {error}")
        self._send()
        self.metrics.step(message)

    def _hand_out(self, new: EngineCoreOutput, ended: float, now: float) -> None:
        """An output of the core to its stream, if its client still reads it. Its step ended at `ended`."""
        processed = self.output_processor.process(new, ended)
        if processed is None:
            return
        self._commands += [Finish(request_id, processed.reason) for request_id in processed.to_finish]
        for part in processed.output.outputs:
            self.metrics.grew(processed.parent, part, now)
            self.num_generation_tokens += len(part.token_ids)
        processed.parent.on_output(processed.output)
        if processed.output.finished:
            self.output_processor.drop(processed.parent.request_id)

    def _die(self) -> None:
        if self.dead is None:
            self.dead = EngineDeadError(self.ENDED)
            logging.getLogger(__name__).error("%s (exit code %s)", self.dead, self.process.exitcode)
        for parent in self.output_processor.parents.values():
            parent.on_output.fail(self.dead)
        self.end_watches()
        self.output_processor = OutputProcessor()

    def end_streams(self) -> None:
        """All answers under way end with an error: the server shuts down."""
        self.dead = self.dead or EngineDeadError("the server is shutting down: ask again later")
        self._die()

    def _tell_watchers(self, events: Sequence[Event | None]) -> None:
        """Drop a client that reads too slowly: nothing here may wait, or grow, for a reader."""
        for queue in list(self._watchers):
            for event in events:
                if queue.full():
                    self._watchers.discard(queue)
                else:
                    queue.put_nowait(event)

    def end_watches(self) -> None:
        """End the streams of all `watch` calls: a server that shuts down would wait for them."""
        self._tell_watchers([None])

    def _fail(self, answer_id: str, message: str) -> None:
        """End a request of which one answer, by the core's id, cannot go on."""
        state = self.output_processor.states.get(answer_id)
        if state is not None:
            self._commands += [Finish(s.request_id, "error") for s in state.parent.states if not s.finished]
            self.output_processor.drop(state.parent.request_id).on_output.fail(RuntimeError(message))

    def _send_soon(self) -> None:
        """Send what has gathered when the event loop has heard all that is there: a request takes part in the next step."""
        if not self._sends:
            self._sends = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._sends = False
        if self._commands and self.dead is None:
            commands, self._commands = self._commands, []
            # In a thread: a pipe holds 64 KiB, and the engine empties it between two steps. Long prompts would hold up the loop.
            self._sender.submit(self._write, self._pipe, commands)

    def _write(self, pipe: Any, commands: list[Add | Finish]) -> None:
        with contextlib.suppress(OSError):  # the process has ended: `_read` ends all streams
            for first in range(0, len(commands), MOST_COMMANDS):
                pipe.send(commands[first : first + MOST_COMMANDS])

    # ------------------------------------------------------------------ for the API

    async def accept(
        self,
        name: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        arrival_time: float,
        priority: int = 0,
    ) -> Request:
        """A request as the engine would take it, checked.

        Args:
            name: the beginning of its id. Two clients may choose the same, so a number follows.
            arrival_time: when it came in, `time.perf_counter()`. Its latency counts from there.

        Raises:
            ValueError: it cannot be served.
        """
        self._num_ids += 1
        request_id = f"{name}-{self._num_ids}"
        given = (request_id, prompt_token_ids, params, priority, arrival_time)
        make = partial(make_request, *given, self.model_config, self.tokenizer)
        request = (
            await asyncio.to_thread(make) if params.bad_words else make()
        )  # they are tokenised: see `encode`
        self.limits.requests.check(request.num_prompt_tokens, request.max_tokens)
        return request

    async def generate(self, request: Request) -> AsyncIterator[RequestOutput]:
        """Answer what was accepted: yields what is new. To stop reading is to abort the request.

        Raises:
            QueueFullError: too many are under way. EngineDeadError: nothing is served any more.
        """
        request_id, n, stream = request.request_id, request.params.n, Stream()
        self._admit(n)
        parent = ParentRequest(request, None, self.tokenizer, stream)
        self.output_processor.add(parent)
        try:
            for i, r in enumerate(parent.requests(), 1):
                self._commands.append(
                    Add(r.request_id, r.prompt_token_ids, r.params, r.arrival_time, r.priority)
                )
                if i % MOST_COMMANDS == 0 or i == n:
                    self._send_soon()
                    # There may be thousands, which take half a second: between two messages the streams of others go on.
                    await asyncio.sleep(0)
                    if request_id not in self.output_processor.parents:
                        break  # refused, or the engine has ended: the stream says so
            finished = False
            while not finished:
                output = await stream.get()
                finished = output.finished
                yield output
        finally:
            if self.output_processor.drop(request_id) is not None:  # its reader is gone
                self._commands += [Finish(s.request_id, "abort") for s in parent.states if not s.finished]
                self._send_soon()

    def _admit(self, n: int) -> None:
        """Refuse n more answers, if there is no room for them. Raises: see `generate`."""
        if self.dead is not None:
            raise self.dead
        if (limit := self.max_num_queued_reqs) is not None:
            unfinished = sum(parent.num_unfinished for parent in self.output_processor.parents.values())
            if unfinished + n > limit:
                self.metrics.rejected()
                raise QueueFullError(f"{unfinished} answers are under way, {limit} may be: try again later")

    async def watch(self) -> AsyncIterator[Event]:
        """What each step did, from now on, as `record` of the recording feature writes it. Ends with the engine, or if the reader is too
        slow.
        """
        if self.dead is not None:
            return
        queue: asyncio.Queue[Event | None] = asyncio.Queue(MOST_UNREAD)
        self._watchers.add(queue)
        try:
            while queue in self._watchers or not queue.empty():
                if (event := await queue.get()) is None:
                    return
                yield event
        finally:
            self._watchers.discard(queue)

    def cached(self, output: RequestOutput) -> int | None:
        """Prompt tokens that were found in the prefix cache, if clients are to be told."""
        return output.metrics.num_cached_tokens if self.enable_prompt_tokens_details else None

    async def encode(self, text: str) -> list[int]:
        """Text to token ids, in a thread, or if it is long in a process, so that no other request waits for it.

        Raises:
            ValueError: it is no text, or too much of it.
        """
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("the text holds half a character (a lone surrogate)") from None
        if len(text) <= LONG_TEXT:
            return await asyncio.to_thread(self.tokenizer.encode, text, "all")
        async with self._long_text:
            return await self._encode_elsewhere(text)

    async def _encode_elsewhere(self, text: str) -> list[int]:
        """As `encode`, by a process that lives only for that."""
        process = subprocess.Popen(  # not the event loop's: uvloop copies this process, for which all streams wait 30 ms
            [sys.executable, "-P", TOKENIZE, self._args.model],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            ids, _ = await asyncio.to_thread(process.communicate, text.encode())
        finally:
            process.kill()  # if its client is gone
        if process.returncode != 0:
            raise ValueError(f"a text of {len(text):,} characters cannot be tokenised here: shorten it")
        return list(array("I", ids))
