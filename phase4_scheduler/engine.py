"""The engine: requests come in at any time, steps go round, text comes out as it is written.

    add_request -> scheduler.schedule -> model -> sampler -> scheduler.update -> text, outputs, events

Each turn of that loop serves everybody who has a part in it. A request that ends leaves at once, and one
that waits takes its place in the very next step. That is continuous batching (Yu et al., "Orca", 2022,
section 3.1, call it iteration-level scheduling).
"""

from __future__ import annotations

import json
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import torch

from labkit.machine import memory_bytes, pick_device
from labkit.models import find_model
from phase1_tokens_embeddings.memory_math import kv_per_token
from phase1_tokens_embeddings.tokenizer import BPETokenizer
from phase2_attention_kvcache.sampling import BadLogitsError, Sampler, SamplingParams, report_logprobs
from phase2_attention_kvcache.transformer import Transformer
from phase3_paged_attention.block_manager import BlockJournal, BlockManager
from phase3_paged_attention.paged_attention import PagedKVCache
from phase4_scheduler.model_runner import ModelRunner
from phase4_scheduler.outputs import AnswerText, Completion, RequestMetrics, RequestOutput
from phase4_scheduler.packed_linear import can_pack, pack_linear_layers
from phase4_scheduler.scheduler import Request, Scheduled, Scheduler, SchedulerConfig, SchedulerOutput

MEMORY_SHARE = 0.3  # of the machine's memory for keys and values, unless num_blocks says otherwise


@dataclass(frozen=True)
class EngineConfig:
    """All settings of an engine. Those it shares with `SchedulerConfig` mean the same.

    Attributes:
        num_blocks: blocks of the KV cache; None: as many as all running requests could ever need, within
            30% of the memory.
        block_size: tokens a block.
        max_model_len: most tokens of a request; None: the model's context.
        num_swap_blocks: blocks of main memory for preempted requests (preemption="swap").
        seed: for requests that have no seed of their own.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    num_blocks: int | None = None
    block_size: int = 16
    max_model_len: int | None = None
    enable_prefix_caching: bool = True
    chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    policy: str = "fcfs"
    preemption: str = "recompute"
    num_swap_blocks: int = 0
    seed: int = 0


class _Answer:
    """What the engine keeps of one answer while it is being written."""

    def __init__(self, group: _Group, index: int, request: Request) -> None:
        self.group, self.index, self.request = group, index, request
        params = group.params
        self.generator = params.make_generator(index)
        self.text = AnswerText(group.tokenizer, params) if group.tokenizer else None
        self.metrics = RequestMetrics(request.arrival_time)


class _Group:
    """A user's request: one prompt, n answers."""

    def __init__(
        self,
        prompt: str | None,
        request: Request,
        tokenizer: BPETokenizer | None,
        on_output: Callable[[RequestOutput], None] | None,
    ) -> None:
        self.request_id, self.prompt, self.prompt_token_ids = (
            request.request_id,
            prompt,
            request.prompt_token_ids,
        )
        self.params, self.tokenizer, self.on_output = request.params, tokenizer, on_output
        self.unfinished = self.params.n
        self.prompt_logprobs: list[dict[int, float] | None] | None = None
        if self.params.prompt_logprobs is not None:
            self.prompt_logprobs = [None] * request.num_prompt_tokens
        self.answers = [_Answer(self, 0, request)]


class LLMEngine:
    """Serves many requests with one model.

    Args:
        model: runs the tokens.
        tokenizer: text to ids and back; None: prompts are token ids, and outputs have no text.
        config: see `EngineConfig`.
        block_manager, scheduler, kv_cache: your own parts instead of the course's.
        clock: seconds; replaceable for tests.

    >>> engine = LLMEngine.from_pretrained("tales", dtype="bfloat16")
    >>> engine.generate(["Once upon a time", "The king"], SamplingParams(max_tokens=20))[0].text
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: BPETokenizer | None = None,
        config: EngineConfig | None = None,
        *,
        block_manager: BlockManager | None = None,
        scheduler: Scheduler | None = None,
        kv_cache: PagedKVCache | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model, self.tokenizer, self.clock = model, tokenizer, clock
        self.config = config or EngineConfig()
        context = model.config.max_context
        longest = context if self.config.max_model_len is None else self.config.max_model_len
        if not 1 <= longest <= context:
            raise ValueError(f"max_model_len is {longest:,}: from 1 to the model's context, {context:,}")
        if block_manager is None and scheduler is not None:
            block_manager = scheduler.block_manager
        if block_manager is None:
            num_blocks = self.config.num_blocks
            block_manager = BlockManager(
                _default_num_blocks(model, self.config, longest) if num_blocks is None else num_blocks,
                self.config.block_size,
                self.config.enable_prefix_caching,
                self.config.num_swap_blocks,
            )
        self.block_manager = block_manager
        self.scheduler = scheduler or Scheduler(
            SchedulerConfig(
                max_model_len=longest,
                **{
                    f.name: getattr(self.config, f.name)
                    for f in fields(SchedulerConfig)
                    if hasattr(self.config, f.name) and f.name != "max_model_len"
                },
            ),
            self.block_manager,
        )
        manager = self.block_manager
        kv_cache = kv_cache or PagedKVCache(
            model.config,
            manager.num_blocks,
            manager.block_size,
            model.dtype,
            model.device,
            manager.num_swap_blocks,
        )
        self.runner = ModelRunner(model, kv_cache)
        self.sampler = Sampler(model.config.eos_token_ids)
        self._answers: dict[str, _Answer] = {}  # by the scheduler's request id
        self._groups: dict[str, _Group] = {}  # by the user's
        self._failed: list[tuple[_Group, RequestOutput, bool]] = []  # the flag: whether on_output is to know
        self._telling = False  # whether an on_output is being called
        self._record: Callable[[dict[str, Any]], None] | None = None
        self.num_steps = 0
        self._idle_steps = 0
        self._next_id = 0
        torch.manual_seed(self.config.seed)

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

    # ------------------------------------------------------------------ for most users

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
            Complete outputs, in the order of the prompts. Requests that others added go on as well; what
            they wrote meanwhile reaches them through their own `on_output`.

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

        def collect(output: RequestOutput) -> None:  # also when somebody else drives the loop
            _accumulate(whole, output)
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
        """Answer one prompt; yield what is new after each step. Whoever stops reading aborts the request."""
        request_id = self._new_id()
        inbox: deque[RequestOutput] = deque()  # steps that others drive bring something as well
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
            self._next_id += 1
            if (request_id := f"request-{self._next_id}") not in self._groups:
                return request_id

    # ------------------------------------------------------------------ for whoever drives the loop

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self._groups) or bool(self._failed)

    def add_request(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        priority: int = 0,
        arrival_time: float | None = None,
        on_output: Callable[[RequestOutput], None] | None = None,
    ) -> None:
        """Queue up a request. It has its part in the next steps.

        Args:
            on_output: called with every output of this request, its abort included. It may add and abort
                requests. If it raises, this request alone fails.

        Raises:
            ValueError: the id is in use, the prompt is empty or too long, or a parameter cannot be served.
                The engine is as it was before.
        """
        params = params or SamplingParams()
        if not isinstance(request_id, str):
            raise ValueError(f"request id {request_id!r} is no text: give a string")
        if request_id in self._groups or request_id in self._answers:
            raise ValueError(f"request id {request_id!r} is in use: give each request an id of its own")
        token_ids = self._token_ids(prompt)
        vocab = self.model.config.vocab_size
        if wrong := [i for i in token_ids if not 0 <= i < vocab]:
            raise ValueError(f"token id {wrong[0]!r} is out of range: this model takes 0 to {vocab - 1}")
        params.check_vocabulary(vocab)
        if params.stop and self.tokenizer is None:
            raise ValueError("stop strings need text, and this engine has no tokenizer: use stop_token_ids")
        request = Request(
            request_id,
            token_ids,
            params,
            arrival_time=self.clock() if arrival_time is None else arrival_time,
            priority=priority,
            eos_token_ids=self.model.config.eos_token_ids,
            reuse_prefix=params.prompt_logprobs is None,
        )
        group = _Group(prompt if isinstance(prompt, str) else None, request, self.tokenizer, on_output)
        self.scheduler.add(request)
        self._groups[request_id] = group
        self._answers[request_id] = group.answers[0]

    def _token_ids(self, prompt: str | Sequence[int]) -> list[int]:
        if not isinstance(prompt, str):
            if not isinstance(prompt, Iterable):
                raise ValueError(f"the prompt is {prompt!r}: give a text or a list of token ids")
            token_ids = list(prompt)
            if wrong := [i for i in token_ids if not isinstance(i, Integral) or isinstance(i, bool)]:
                raise ValueError(f"the prompt holds {wrong[0]!r}: token ids are whole numbers")
            return [int(i) for i in token_ids]
        if self.tokenizer is None:
            raise ValueError("this engine has no tokenizer: give the prompt as token ids")
        return self.tokenizer.encode(prompt)

    def abort(self, request_id: str) -> bool:
        """End a request now and free what it holds. False if no such request is alive.

        Its `on_output` gets a last output, with finish_reason "abort".
        """
        group = self._groups.get(request_id)
        if group is None:
            return False
        self._tell(group, self._end(group, "abort"))
        return True

    def record(self, where: str | Path | Callable[[dict[str, Any]], None] | None) -> None:
        """Write down every step from now on: into a file of JSON lines, or into a function. None stops it."""
        if where is None or callable(where):
            self._record = where
        else:
            path = Path(where)
            path.write_text("", encoding="utf-8")

            def append(event: dict[str, Any]) -> None:
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(event) + "\n")

            self._record = append
        self.block_manager.journal = None if where is None else BlockJournal()

    # ------------------------------------------------------------------ one turn of the loop

    def step(self) -> list[RequestOutput]:
        """Decide, compute, sample, hand out. Returns what is new, one output for each answer that grew."""
        if self._telling:
            raise RuntimeError("a step is under way: on_output may add and abort requests, but start no step")
        began = self.clock()
        output = self.scheduler.schedule()
        if not output.scheduled:
            return self._nothing_to_compute(output)
        try:
            hidden, rows = self._compute(output)
            tokens, logprobs = self._sample(output, hidden, rows)
        except BaseException:  # Ctrl-C in the middle: nothing of this step counts, everybody does it again
            self._take_back(output)
            raise
        now = self.clock()
        self.scheduler.update(output, tokens)
        outputs = self._hand_out(output, tokens, logprobs, began, now)
        if self._record:
            self._record_step(output, began, now)
        self.num_steps += 1
        self._idle_steps = 0
        return outputs

    def _nothing_to_compute(self, output: SchedulerOutput) -> list[RequestOutput]:
        self.runner.kv_cache.apply_copies(output.copies)
        if not self.scheduler.has_requests or output.preempted:
            self._idle_steps = 0
        else:
            self._idle_steps += 1
            if self._idle_steps > 2:
                raise RuntimeError("requests wait, and the scheduler schedules none of them: it is stuck")
        return self._take_failed()

    def _compute(self, output: SchedulerOutput) -> tuple[torch.Tensor, list[tuple[Scheduled, int]]]:
        """Run the model. Returns hidden states, and for each request that was computed its first row there."""
        self.runner.kv_cache.apply_copies(output.copies)
        try:
            hidden = self.runner.execute(output.scheduled)
            computed = output.scheduled
        except Exception:
            hidden, computed = self._compute_one_by_one(output)
        rows, first = [], 0
        for s in computed:
            rows.append((s, first))
            first += s.num_tokens
        return hidden, rows

    def _compute_one_by_one(self, output: SchedulerOutput) -> tuple[torch.Tensor, list[Scheduled]]:
        """A step failed, and nobody can say because of whom. So each has a step alone; who fails again ends."""
        pieces, computed, broken_blocks = [], [], set()
        for s in output.scheduled:
            if s.request.finished:
                continue  # another answer to the same prompt failed
            blocks = s.request.block_table.block_ids
            to_fill = blocks[s.num_computed // self.block_manager.block_size :]
            if not broken_blocks.isdisjoint(blocks):  # it counted on a block that was never filled
                broken_blocks.update(to_fill)
                self.scheduler.restart(s.request)
                continue
            try:
                pieces.append(self.runner.execute([s]))
                computed.append(s)
            except Exception as error:
                broken_blocks.update(to_fill)
                self._fail(self._answers[s.request.request_id].group, f"{type(error).__name__}: {error}")
        empty = torch.empty(0, self.model.config.d_model, dtype=self.model.dtype, device=self.model.device)
        return torch.cat(pieces) if pieces else empty, computed

    def _sample(
        self, output: SchedulerOutput, hidden: torch.Tensor, rows: list[tuple[Scheduled, int]]
    ) -> tuple[list[int | None], dict[str, dict[int, float]]]:
        """One token for each request whose tokens are all computed.

        Returns:
            A token (or None) for each entry of `output.scheduled`, and log probabilities by request id.
        """
        answers: list[_Answer] = []
        last_rows: list[int] = []
        for s, first in rows:
            answer = self._answers[s.request.request_id]
            if answer.group.prompt_logprobs is not None:
                self._note_prompt_logprobs(answer.group, s, hidden[first : first + s.num_tokens])
            if s.samples:
                for each in self._split_answers(output, answer):
                    answers.append(each)
                    last_rows.append(first + s.num_tokens - 1)
        picked: dict[str, int] = {}
        logprobs: dict[str, dict[int, float]] = {}
        logits = self.runner.logits(hidden, last_rows) if answers else None
        while answers:
            try:
                sampled = self.sampler.sample(
                    logits,
                    [a.group.params for a in answers],
                    [a.request.prompt_token_ids for a in answers],
                    [a.request.output_token_ids for a in answers],
                    [a.generator for a in answers],
                )
            except BadLogitsError as error:  # these requests are lost; the others are sampled again
                for i in error.rows:
                    self._fail(answers[i].group, str(error))
                keep = [i for i, a in enumerate(answers) if not a.request.finished]
                logits, answers = logits[keep], [answers[i] for i in keep]
                continue
            for answer, token, entry in zip(answers, sampled.token_ids, sampled.logprobs, strict=True):
                picked[answer.request.request_id] = token
                if entry is not None:
                    logprobs[answer.request.request_id] = entry
            break
        return [picked.get(s.request.request_id) for s in output.scheduled], logprobs

    def _split_answers(self, output: SchedulerOutput, answer: _Answer) -> list[_Answer]:
        """When the prompt of a request with n answers is computed, n - 1 others fork off from its blocks.

        Returns:
            The answer, and those that were split off right now.
        """
        parent, group, answers = answer.request, answer.group, [answer]
        while parent.num_seats > 1:
            index = len(group.answers)
            request_id = f"{group.request_id}#{index}"
            while request_id in self._answers:
                request_id += "#"
            child = Request(
                request_id,
                parent.prompt_token_ids,
                group.params,
                parent.arrival_time,
                parent.priority,
                self.model.config.eos_token_ids,
            )
            self.scheduler.fork(output, parent, child)
            answers.append(_Answer(group, index, child))
            group.answers.append(answers[-1])
            self._answers[request_id] = answers[-1]
        return answers

    def _note_prompt_logprobs(self, group: _Group, s: Scheduled, hidden: torch.Tensor) -> None:
        """Each row of a prompt predicts the prompt's next token; say how likely it was."""
        prompt, wanted = group.prompt_token_ids, group.params.prompt_logprobs
        num_rows = min(s.num_tokens, len(prompt) - 1 - s.num_computed)
        if num_rows <= 0:
            return
        following = prompt[s.num_computed + 1 : s.num_computed + 1 + num_rows]
        logits = self.runner.logits(hidden, range(num_rows))
        reports = report_logprobs(logits, [SamplingParams(logprobs=wanted)] * num_rows, following)
        group.prompt_logprobs[s.num_computed + 1 : s.num_computed + 1 + num_rows] = reports

    def _hand_out(
        self,
        output: SchedulerOutput,
        tokens: list[int | None],
        logprobs: dict[str, dict[int, float]],
        began: float,
        now: float,
    ) -> list[RequestOutput]:
        grown: list[tuple[_Group, RequestOutput]] = []
        for s, token in zip(output.scheduled, tokens, strict=True):
            answer = self._answers.get(s.request.request_id)
            if answer is None:
                continue  # failed in this step
            metrics = answer.metrics
            if metrics.first_scheduled_time is None:
                metrics.first_scheduled_time = began
                metrics.num_cached_tokens = s.request.num_cached_tokens
            if token is not None:
                metrics.token_times.append(now)
                out = self._output_of(answer, token, logprobs.get(s.request.request_id), now)
                grown.append((answer.group, out))
        outputs: list[RequestOutput] = []
        for group, out in grown:
            if self._groups.get(out.request_id) is not group:
                continue  # the on_output of another one has just aborted it
            if out.finished:
                del self._groups[out.request_id]
            outputs.append(out)
            if error := self._tell(group, out):
                self._fail(group, f"on_output raised {type(error).__name__}: {error}", tell=False)
        return outputs + self._take_failed()

    def _tell(self, group: _Group, output: RequestOutput) -> Exception | None:
        """Call the request's own `on_output`, if it has one. Returns what that raised."""
        if group.on_output is None:
            return None
        outer, self._telling = self._telling, True
        try:
            group.on_output(output)
        except Exception as error:
            return error
        finally:
            self._telling = outer
        return None

    def _output_of(
        self, answer: _Answer, token: int, logprobs: dict[int, float] | None, now: float
    ) -> RequestOutput:
        """What is new of an answer. Stop strings are found here, since only text can show them."""
        request, group, text = answer.request, answer.group, ""
        if answer.text is not None:
            ended_by_token = request.finish_reason == "stop"
            if not ended_by_token or group.params.include_stop_str_in_output:
                text = answer.text.push(token)
            if answer.text.stopped_by is not None:
                self.scheduler.finish(request, "stop")
                request.finish_reason, request.stop_reason = "stop", answer.text.stopped_by
            elif request.finished:
                text += answer.text.finish()
                if answer.text.stopped_by is not None:
                    request.finish_reason, request.stop_reason = "stop", answer.text.stopped_by
        if request.finished:
            answer.metrics.finished_time = now
            answer.metrics.num_preemptions = request.num_preemptions
            group.unfinished -= 1
            del self._answers[request.request_id]
        return RequestOutput(
            group.request_id,
            group.prompt,
            group.prompt_token_ids,
            [
                Completion(
                    answer.index,
                    [token],
                    text,
                    answer.metrics,
                    request.finish_reason,
                    request.stop_reason,
                    None if logprobs is None else [logprobs],
                )
            ],
            finished=group.unfinished == 0,
            prompt_logprobs=group.prompt_logprobs,
        )

    # ------------------------------------------------------------------ when things go wrong

    def _end(self, group: _Group, reason: str, error: str | None = None) -> RequestOutput:
        """End those answers of a request that are still being written. Returns its last output."""
        del self._groups[group.request_id]
        now, ended = self.clock(), []
        for answer in group.answers:
            if self._answers.pop(answer.request.request_id, None) is None:
                continue  # this one was complete
            if reason == "error":  # what its blocks hold is not to be trusted: nobody may hit them
                self.block_manager.uncache(answer.request.block_table)
            self.scheduler.finish(answer.request, reason)
            answer.metrics.finished_time = now
            answer.metrics.num_preemptions = answer.request.num_preemptions
            text = answer.text.finish() if answer.text else ""  # what waited for a stop string to go on
            ended.append(Completion(answer.index, [], text, answer.metrics, reason))
        if not ended:
            ended = [Completion(0, [], "", group.answers[0].metrics, reason)]
        return RequestOutput(
            group.request_id,
            group.prompt,
            group.prompt_token_ids,
            ended,
            finished=True,
            prompt_logprobs=group.prompt_logprobs,
            error=error,
        )

    def _fail(self, group: _Group, message: str, tell: bool = True) -> None:
        """End a request with an error. Its last output goes out with those of this step."""
        if self._groups.get(group.request_id) is group:  # otherwise it failed already
            self._failed.append((group, self._end(group, "error", message), tell))

    def _take_failed(self) -> list[RequestOutput]:
        failed, self._failed = self._failed, []
        for group, output, tell in failed:
            if tell:
                self._tell(group, output)
        return [output for _, output, _ in failed]

    def _take_back(self, output: SchedulerOutput) -> None:
        """Nothing of this step counts: whoever had a part in it goes back to the queue."""
        for s in reversed(output.scheduled):
            self.scheduler.restart(s.request)
            if answer := self._answers.get(s.request.request_id):
                # It may have thrown its dart already. Its source of chance begins again, too.
                answer.generator = answer.group.params.make_generator(answer.index)
                if answer.generator is not None:
                    torch.rand(
                        len(s.request.output_token_ids), dtype=torch.float64, generator=answer.generator
                    )
        for request in output.preempted:  # its blocks may not have reached the swap space
            self.block_manager.free(request.block_table)
            request.num_computed_tokens = 0

    # ------------------------------------------------------------------ the event stream

    def _record_step(self, output: SchedulerOutput, began: float, now: float) -> None:
        manager, journal = self.block_manager, self.block_manager.journal or BlockJournal()
        name = lambda s: s.request.request_id  # noqa: E731
        event = {
            "step": self.num_steps,
            "time": began,
            "seconds": now - began,
            "tokens": {name(s): s.num_tokens for s in output.scheduled},
            "computed": {name(s): s.num_computed for s in output.scheduled},
            "blocks": {name(s): list(s.request.block_table.block_ids) for s in output.scheduled},
            "preempted": [r.request_id for r in output.preempted],
            "finished": {name(s): s.request.finish_reason for s in output.scheduled if s.request.finished},
            "running": len(self.scheduler.running),
            "waiting": len(self.scheduler.waiting),
            "free_blocks": manager.num_free_blocks,
            "usage": manager.usage,
            **vars(journal),
        }
        manager.journal = BlockJournal()
        try:
            self._record(event)
        except Exception as error:  # whoever listens must not stop the engine
            self.record(None)
            warnings.warn(f"recording stopped: {type(error).__name__}: {error}", stacklevel=3)


def _accumulate(whole: dict[str, RequestOutput], new: RequestOutput) -> None:
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
            so_far.outputs.append(replace(part))
            so_far.outputs.sort(key=lambda c: c.index)
        else:
            known.token_ids += part.token_ids
            known.text += part.text
            known.finish_reason, known.stop_reason = part.finish_reason, part.stop_reason
            if part.logprobs is not None:
                known.logprobs += part.logprobs


def _default_num_blocks(model: Transformer, config: EngineConfig, longest: int) -> int:
    """Enough for `max_num_seqs` requests of full length, if the memory holds them; never too few for one."""
    if config.block_size < 1:
        raise ValueError(f"block_size is {config.block_size}: a block holds at least 1 token")
    blocks_each = -(-longest // config.block_size)
    wanted = config.max_num_seqs * blocks_each
    if model.device.type == "cuda":
        available = torch.cuda.mem_get_info()[0] * 0.9
    else:
        available = (memory_bytes() or 8 * 2**30) * MEMORY_SHARE
    block_bytes = config.block_size * kv_per_token(model.config, model.dtype.itemsize)
    return max(blocks_each, min(wanted, int(available // block_bytes))) + 1
