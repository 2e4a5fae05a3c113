"""The engine as most people use it: load a model, answer prompts whole or as a stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from labkit.machine import pick_device
from labkit.models import find_model
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.model.packed_linear import can_pack, pack_linear_layers
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase2_attention_kvcache.model.transformer import Transformer
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.core import EngineCore
from phase4_scheduler.engine.outputs import RequestOutput


class LLMEngine(EngineCore):
    """Serves many requests with one model. `step`, `add_request` and `abort` are those of `EngineCore`.

    >>> engine = LLMEngine.from_pretrained("tales", dtype="bfloat16")
    >>> engine.generate(["Once upon a time", "The king"], SamplingParams(max_tokens=20))[0].text
    """

    _num_ids = 0  # requests that were given an id by the engine

    @classmethod
    def from_pretrained(
        cls, path_or_name: str | Path, dtype: str = "bfloat16", device: str = "auto", **settings: Any
    ) -> LLMEngine:
        """Load a model and its tokenizer. `settings` are the fields of `EngineConfig`.

        Raises:
            LabError: no such model or device. ValueError: a setting out of range, or unknown.
        """
        known = {f.name for f in fields(EngineConfig)}
        if unknown := sorted(set(settings) - known):
            raise ValueError(f"unknown setting {unknown[0]!r}: the engine knows {', '.join(sorted(known))}")
        folder = find_model(path_or_name)
        model = Transformer.from_pretrained(folder, dtype, pick_device(device))
        if can_pack(model):
            pack_linear_layers(model)
        file = folder / "tokenizer.json"
        tokenizer = BPETokenizer.from_file(file) if file.is_file() else None
        return cls(model, tokenizer, EngineConfig(**settings))

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
        """
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        if len(params) != len(prompts):
            raise ValueError(f"{len(params)} params for {len(prompts)} prompts: give one, or one for each")
        ids: list[str] = []
        whole: dict[str, RequestOutput] = {}
        waiting: set[str] = set()

        def collect(output: RequestOutput) -> None:  # also of steps that other callers drive
            accumulate(whole, output)
            if output.finished:
                waiting.discard(output.request_id)

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


def accumulate(whole: dict[str, RequestOutput], new: RequestOutput) -> None:
    """Add a step's output to what a request has so far."""
    so_far = whole.get(new.request_id)
    if so_far is None:
        so_far = whole[new.request_id] = RequestOutput(
            new.request_id, new.prompt, new.prompt_token_ids, [], prompt_logprobs=new.prompt_logprobs
        )
    so_far.finished, so_far.error = new.finished, new.error
    for part in new.outputs:
        known = next((c for c in so_far.outputs if c.index == part.index), None)
        if known is None:
            own_lists = dict(token_ids=list(part.token_ids), logprobs=part.logprobs and list(part.logprobs))
            so_far.outputs.append(replace(part, **own_lists))
            so_far.outputs.sort(key=lambda c: c.index)
        else:
            known.token_ids += part.token_ids
            known.text += part.text
            known.finish_reason, known.stop_reason = part.finish_reason, part.stop_reason
            if part.logprobs is not None:
                known.logprobs += part.logprobs
