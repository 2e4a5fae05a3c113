"""The engine's interface for text: prompts in, answers out, whole or as a stream, around an `EngineCore` that handles tokens."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

import phase4_scheduler
from labkit.checks import real, whole
from labkit.foreign import quoted
from labkit.interrupts import ctrl_c_waits
from labkit.machine import pick_device
from labkit.models import find_model
from phase1_tokens_embeddings.tokens import BPETokenizer, Tokenizer
from phase2_attention_kvcache.model.config import ModelConfig
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase2_attention_kvcache.model.transformer import Transformer
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.core import Clock, EngineCore, EngineCoreOutputs, build_core
from phase4_scheduler.engine.output_processor import OutputProcessor, ParentRequest
from phase4_scheduler.engine.outputs import RequestOutput
from phase4_scheduler.engine.request import Request


class LLMEngine:
    """Serves many requests with one model.

    Args:
        tokenizer: text to ids and back; None: prompts are token ids, and outputs have no text.
        config: the core's settings.
        clock: seconds; replaceable for tests.
        parts: parts of your own instead of the course's (`block_manager`, `scheduler`, `kv_cache`), and settings of
            features: see `phase4_scheduler.assembly.build_core`.

    Threads: only one thread may run steps. Any thread may add and abort requests meanwhile.

    >>> engine = LLMEngine.from_pretrained("tales", dtype="bfloat16")
    >>> engine.generate(["Once upon a time", "The king"], SamplingParams(max_tokens=20))[0].text

    Source: vllm/v1/engine/llm_engine.py; vllm/entrypoints/llm.py.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer | None = None,
        config: EngineConfig | None = None,
        *,
        clock: Clock = time.perf_counter,
        **parts: Any,
    ) -> None:
        self.core: EngineCore = build_core(model, config or EngineConfig(), clock=clock, **parts)
        self.model = self.core.model  # a backend may have its own
        self.tokenizer, self.clock = tokenizer, clock
        self.output_processor = OutputProcessor()
        self._stepping = threading.Lock()
        self._outputs: list[RequestOutput] = []  # of a step that an interruption kept from its caller
        self._ids = (f"request-{i}" for i in count(1))  # for requests that are given an id by the engine

    @classmethod
    def from_pretrained(
        cls, path_or_name: str | Path, dtype: str = "bfloat16", device: str = "auto", **settings: Any
    ) -> LLMEngine:
        """Load a model and its tokenizer. `settings`: fields of `EngineConfig`, and settings of features.

        Raises:
            LabError: no such model or device. ValueError: a setting out of range, or unknown.
        """
        folder = find_model(path_or_name)
        if phase4_scheduler.ASSEMBLY is not None:
            return import_module(phase4_scheduler.ASSEMBLY).load_engine(cls, folder, dtype, device, settings)
        model = Transformer.from_pretrained(folder, dtype, pick_device(device))
        return cls(model, BPETokenizer.from_file(folder / "tokenizer.json"), EngineConfig(**settings))

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self.output_processor.parents) or bool(self._outputs)

    # ------------------------------------------------------------------ steps

    def step(self) -> list[RequestOutput]:
        """Run one step of the core. Returns the new text: one output for each answer that grew.

        Ctrl-C takes effect when the step is complete; its outputs are returned by the next call.

        Raises:
            RuntimeError: another step is under way.
        """
        if not self._stepping.acquire(blocking=False):
            raise RuntimeError(
                "a step is under way: another thread, or an on_output, may add and abort requests, but start no step"
            )
        try:
            with ctrl_c_waits():
                self._outputs += self._hand_out(self.core.step())
        finally:
            self._stepping.release()
        outputs, self._outputs = self._outputs, []
        return outputs

    def _hand_out(self, step: EngineCoreOutputs) -> list[RequestOutput]:
        """The step's outputs, each also passed to its request's `on_output`."""
        process, parents = self.output_processor.process, self.output_processor.parents
        processed = [p for new in step.outputs if (p := process(new, step.ended)) is not None]
        for p in processed:
            for request_id in p.to_finish:
                self.core.finish(request_id, p.reason)
        outputs: list[RequestOutput] = []
        for p in processed:
            if parents.get(p.parent.request_id) is not p.parent:
                continue  # an on_output has just aborted it
            if p.output.finished:
                self.output_processor.drop(p.parent.request_id)
            outputs.append(p.output)
            error = self._tell(p.parent, p.output)
            if error and parents.get(p.parent.request_id) is p.parent:
                outputs.append(self._end(p.parent, "error", error))
        return outputs

    def _end(self, parent: ParentRequest, reason: str, error: str | None = None) -> RequestOutput:
        """End all answers of a request. Returns its last output."""
        self.output_processor.drop(parent.request_id)
        for state in parent.states:
            if not state.finished:
                self.core.finish(state.request_id, reason)
        return self.output_processor.end(parent, reason, self.clock(), error)

    def _tell(self, parent: ParentRequest, output: RequestOutput) -> str | None:
        """Call a request's own `on_output`, if it has one. Returns the error that it raised, if any."""
        try:
            if parent.on_output is not None:
                parent.on_output(output)
        except Exception as error:
            return f"on_output raised {type(error).__name__}: {error}"
        return None

    # ------------------------------------------------------------------ requests come and go

    def add_request(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        priority: int = 0,
        arrival_time: float | None = None,
        on_output: Callable[[RequestOutput], None] | None = None,
    ) -> None:
        """Queue up a request. The next steps serve it.

        Args:
            on_output: called with every output of this request, its abort included. It may add and abort
                requests. If it raises an Exception, this request alone fails; SystemExit and Ctrl-C in it end the step.

        Raises:
            ValueError: the id is in use, the prompt is empty or too long, or a parameter cannot be served.
                The engine is as it was before.
        """
        arrival_time = self.clock() if arrival_time is None else arrival_time
        request = make_request(
            request_id, prompt, params, priority, arrival_time, self.model.config, self.tokenizer
        )
        text = prompt if isinstance(prompt, str) else None
        parent = ParentRequest(request, text, self.tokenizer, on_output)
        # Before the core knows of it: another thread's step may bring its first token at once.
        self.output_processor.add(parent)
        try:
            for answer in parent.requests():  # they are alike: if one is refused, it is the first
                self.core.add(answer)
        except ValueError:
            self.output_processor.drop(request_id)
            raise

    def abort(self, request_id: str) -> bool:
        """End a request now and free what it holds. False if no such request is alive.

        The request's `on_output` receives a last output with finish_reason "abort".
        """
        parent = self.output_processor.parents.get(request_id)
        if parent is not None:
            self._tell(parent, self._end(parent, "abort"))
        return parent is not None

    # ------------------------------------------------------------------ whole answers and streams

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts; return when all answers are complete.

        Args:
            prompts: texts or lists of token ids (or a single text).
            params: for all of them, or one for each.

        Returns:
            Complete outputs, in the order of the prompts. Requests that were added earlier also continue; their
            outputs reach their callers through `on_output`.

        Raises:
            ValueError: a prompt or its parameters cannot be served. Then no request was started.
            RuntimeError: another thread is stepping.
        """
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        if len(params) != len(prompts):
            raise ValueError(f"{len(params)} params for {len(prompts)} prompts: give one, or one for each")
        whole: dict[str, RequestOutput] = {}

        def collect(output: RequestOutput) -> None:  # also of steps that other callers drive
            empty = RequestOutput(output.request_id, output.prompt, output.prompt_token_ids, [])
            whole.setdefault(output.request_id, empty).add(output)

        ids: list[str] = []
        try:
            for prompt, p in zip(prompts, params, strict=True):
                ids.append(self._new_id())
                self.add_request(ids[-1], prompt, p, on_output=collect)
            while not all(i in whole and whole[i].finished for i in ids):
                self.step()
        except BaseException:
            for request_id in ids:
                self.abort(request_id)
            raise
        return [whole[request_id] for request_id in ids]

    def stream(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Answer one prompt; yield the new text after each step. If the caller stops reading, the request is aborted."""
        request_id = self._new_id()
        inbox: deque[RequestOutput] = deque()  # steps that other callers drive bring something as well
        self.add_request(request_id, prompt, params, on_output=inbox.append)
        try:
            done = False
            while not done:
                if inbox:
                    done = inbox[0].finished
                    yield inbox.popleft()
                else:
                    self.step()
        finally:
            self.abort(request_id)

    def _new_id(self) -> str:
        return next(new for new in self._ids if new not in self.output_processor.parents)


def make_request(
    request_id: str,
    prompt: str | Sequence[int],
    params: SamplingParams | None,
    priority: int,
    arrival_time: float,
    config: ModelConfig,
    tokenizer: Tokenizer | None,
) -> Request:
    """A request from a user's arguments, checked before anything is started.

    Raises:
        ValueError: the prompt is empty, or this model cannot serve it or its parameters.
    """
    params = SamplingParams() if params is None else params
    if not isinstance(params, SamplingParams):
        raise ValueError(f"params are {quoted(params)}: give SamplingParams(...)")
    if not isinstance(request_id, str):
        raise ValueError(f"request id {quoted(request_id)} is no text: give a string")
    whole(-(2**63), allowed="a whole number, the smallest goes first")("priority", priority)
    real(-1e300, 1e300, "a number of seconds, or None")("arrival_time", arrival_time)
    if isinstance(prompt, str):
        if tokenizer is None:
            raise ValueError("this engine has no tokenizer: give the prompt as token ids")
        prompt = tokenizer.encode(prompt)
    vocab, token_ids = config.vocab_size, np.asarray(prompt)
    if token_ids.ndim != 1 or (token_ids.size and token_ids.dtype.kind not in "iu"):
        raise ValueError(
            f"the prompt is {quoted(prompt)}: give a text or a list of token ids, which are whole numbers"
        )
    if (wrong := (token_ids < 0) | (token_ids >= vocab)).any():
        value = token_ids[wrong.argmax()]
        raise ValueError(f"token id {value} is out of range: this model takes 0 to {vocab - 1}")
    params = params.fitted(vocab, tokenizer and tokenizer.encode)
    return Request(request_id, token_ids.tolist(), params, arrival_time, priority, config.eos_token_ids)
