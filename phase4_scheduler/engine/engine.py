"""The engine as most people use it: text in, text out, whole or as a stream, around an `EngineCore` that knows tokens."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from labkit.interrupts import ctrl_c_waits
from labkit.models import find_model
from phase1_tokens_embeddings.tokens import Tokenizer
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import PagedCache
from phase3_paged_attention.paging.block_manager import BlockManager
from phase4_scheduler.engine.admission import make_request
from phase4_scheduler.engine.build import load_model, load_tokenizer
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.core import EngineCore, EngineCoreOutputs
from phase4_scheduler.engine.events import Event, StepRecorder
from phase4_scheduler.engine.executor import Executor, start_executor
from phase4_scheduler.engine.output_processor import OutputProcessor, ParentRequest
from phase4_scheduler.engine.outputs import RequestOutput
from phase4_scheduler.engine.proposers import Proposer
from phase4_scheduler.engine.scheduler import Scheduler


class LLMEngine:
    """Serves many requests with one model.

    Args:
        tokenizer: text to ids and back; None: prompts are token ids, and outputs have no text.
        proposer: who drafts tokens, with `speculative_config=dict(method="custom", ...)`.
        Others: see `EngineCore`.

    Threads: one of them steps. Any may add and abort requests meanwhile.

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
        block_manager: BlockManager | None = None,
        scheduler: Scheduler | None = None,
        kv_cache: PagedCache | None = None,
        proposer: Proposer | None = None,
        clock: Callable[[], float] = time.perf_counter,
        executor: Executor | None = None,
    ) -> None:
        config = config or EngineConfig()
        self.core = EngineCore(model, config, block_manager, scheduler, kv_cache, clock, proposer, executor)
        self.executor = executor
        self.model, self.tokenizer, self.config, self.clock = model, tokenizer, self.core.config, clock
        self.scheduler, self.block_manager = self.core.scheduler, self.core.block_manager
        self.runner = self.core.runner
        self.output_processor = OutputProcessor()
        self._stepping = threading.Lock()
        self._outputs: list[RequestOutput] = []  # of a step that an interruption kept from its caller
        self._interruption: BaseException | None = None  # raised in an on_output, to end the program
        self._recorder: StepRecorder | None = None
        self._num_ids = 0  # requests that were given an id by the engine

    @classmethod
    def from_pretrained(
        cls,
        path_or_name: str | Path,
        dtype: str = "bfloat16",
        device: str = "auto",
        proposer: Proposer | None = None,
        distributed_executor_backend: Callable[..., Executor] | None = None,
        **settings: Any,
    ) -> LLMEngine:
        """Load a model and its tokenizer. `settings` are the fields of `EngineConfig`.

        Args:
            distributed_executor_backend: makes the executor, if the model is spread over devices; None: the one that is installed.

        Raises:
            LabError: no such model or device. ValueError: a setting out of range, or unknown.
        """
        known = {f.name for f in fields(EngineConfig)}
        if unknown := sorted(set(settings) - known):
            raise ValueError(f"unknown setting {unknown[0]!r}: the engine knows {', '.join(sorted(known))}")
        folder = find_model(path_or_name)
        config = EngineConfig(**settings)
        if config.world_size > 1:
            executor = start_executor(config, folder, dtype, device, distributed_executor_backend)
            tokenizer = load_tokenizer(folder)
            return cls(executor.model, tokenizer, config, proposer=proposer, executor=executor)
        model = load_model(folder, dtype, device, config.quantization)
        return cls(model, load_tokenizer(folder), config, proposer=proposer)

    @property
    def num_steps(self) -> int:
        return self.core.num_steps

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self.output_processor.parents) or bool(self._outputs)

    # ------------------------------------------------------------------ steps

    def step(self) -> list[RequestOutput]:
        """One step of the core. Returns what is new, in text: one output for each sequence that grew.

        Ctrl-C takes effect when the step is complete; what it brought comes with the next one.

        Raises:
            RuntimeError: another step is under way.
        """
        if not self._stepping.acquire(blocking=False):
            raise RuntimeError(
                "a step is under way: another thread, or an on_output, may add and abort requests, but start no step"
            )
        try:
            with ctrl_c_waits():
                step = self.core.step()
                self._outputs += self._hand_out(step)
                if self._recorder and not self._recorder.record(self.num_steps - 1, step):
                    self.record(None)  # it failed
        finally:
            self._stepping.release()
        self._raise_interruption()
        outputs, self._outputs = self._outputs, []
        return outputs

    def _hand_out(self, step: EngineCoreOutputs) -> list[RequestOutput]:
        """The step's outputs, each told to its request's `on_output`; those of failed requests last."""
        parents, process = self.output_processor.parents, self.output_processor.process
        processed = [p for new in step.outputs if (p := process(new, step.ended)) is not None]
        for p in processed:
            if p.stopped_by_text:
                self.core.finish(p.parent.request_id, "stop", p.output.outputs[0].index)
        outputs: list[RequestOutput] = []
        failed: list[RequestOutput] = []
        for p in processed:
            if parents.get(p.parent.request_id) is not p.parent:
                continue  # an on_output has just aborted it
            if p.output.finished:
                del parents[p.parent.request_id]
            (outputs if p.output.error is None else failed).append(p.output)
            error = self._tell(p.parent, p.output)
            if error and parents.get(p.parent.request_id) is p.parent:
                failed.append(self._end(p.parent, "error", error))
        return outputs + failed

    def _end(self, parent: ParentRequest, reason: str, error: str | None = None) -> RequestOutput:
        """End all sequences of a request. Returns its last output."""
        del self.output_processor.parents[parent.request_id]
        self.core.finish(parent.request_id, reason)
        return self.output_processor.end(parent, reason, self.clock(), error)

    def _tell(self, parent: ParentRequest, output: RequestOutput) -> str | None:
        """Call a request's own `on_output`, if it has one. Returns what went wrong in it."""
        if parent.on_output is None:
            return None
        try:
            parent.on_output(output)
        except Exception as error:
            return f"on_output raised {type(error).__name__}: {error}"
        except BaseException as error:  # Ctrl-C or exit in there: the other requests get their outputs first
            self._interruption = error
        return None

    def _raise_interruption(self) -> None:
        if self._interruption is not None and not self._stepping.locked():
            interruption, self._interruption = self._interruption, None
            raise interruption

    def record(self, where: str | Path | Callable[[Event], None] | None) -> None:
        """Write down every step from now on: into a file of JSON lines, or into a function. None stops it."""
        # A place that cannot be written leaves the recording as it was.
        self._recorder = None if where is None else StepRecorder(where, self.scheduler)
        if where is None:
            self.block_manager.journal = None

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
                requests. If it raises, this request alone fails.

        Raises:
            ValueError: the id is in use, the prompt is empty or too long, or a parameter cannot be served.
                The engine is as it was before.
        """
        arrival_time = self.clock() if arrival_time is None else arrival_time
        request = make_request(
            request_id, prompt, params, priority, arrival_time, self.model.config, self.tokenizer
        )
        if request_id in self.output_processor.parents:
            raise ValueError(f"request id {request_id!r} is in use: give each request an id of its own")
        text = prompt if isinstance(prompt, str) else None
        # Before the core knows of it: another thread's step may bring its first token at once.
        parents = self.output_processor.parents
        parents[request_id] = ParentRequest(request, text, self.tokenizer, on_output)
        try:
            self.core.add(request)
        except ValueError:
            del parents[request_id]
            raise

    def abort(self, request_id: str) -> bool:
        """End a request now and free what it holds. False if no such request is alive.

        Its `on_output` gets a last output, with finish_reason "abort".
        """
        parent = self.output_processor.parents.get(request_id)
        if parent is None:
            return False
        self._tell(parent, self._end(parent, "abort"))
        self._raise_interruption()
        return True

    # ------------------------------------------------------------------ whole answers and streams

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts; return when all are done.

        Args:
            prompts: texts or lists of token ids (or a single text).
            params: for all of them, or one for each.

        Returns:
            Complete outputs, in the order of the prompts. Requests that were added before go on as well; their
            outputs reach their callers through `on_output`.

        Raises:
            ValueError: a prompt or its parameters cannot be served. Then nothing was started.
            RuntimeError: another thread is stepping.
        """
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        if len(params) != len(prompts):
            raise ValueError(f"{len(params)} params for {len(prompts)} prompts: give one, or one for each")
        whole: dict[str, RequestOutput] = {}
        waiting: set[str] = set()

        def collect(output: RequestOutput) -> None:  # also of steps that other callers drive
            empty = RequestOutput(output.request_id, output.prompt, output.prompt_token_ids, [])
            whole.setdefault(output.request_id, empty).add(output)
            if output.finished:
                waiting.discard(output.request_id)

        ids: list[str] = []
        try:
            for prompt, p in zip(prompts, params, strict=True):
                request_id = self._new_id()
                self.add_request(request_id, prompt, p, on_output=collect)
                ids.append(request_id)
            waiting.update(ids)
            while waiting:
                self.step()
        except BaseException:
            for request_id in ids:
                self.abort(request_id)
            raise
        return [whole[request_id] for request_id in ids]

    def stream(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Answer one prompt; yield what is new after each step. To stop reading is to abort the request."""
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
        while True:
            self._num_ids += 1
            if (request_id := f"request-{self._num_ids}") not in self.output_processor.parents:
                return request_id
