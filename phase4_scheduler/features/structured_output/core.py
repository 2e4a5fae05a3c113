"""Grammars in the engine: compiled beside the steps, consulted before each token is sampled.

A request whose masks are slow lets a step pass until a thread has the next one: the other requests do not wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import torch
from torch import Tensor

from phase4_scheduler.engine.core import EngineCore, EngineCoreOutput
from phase4_scheduler.engine.model_runner import ModelRunner, Sampled, StepBatch
from phase4_scheduler.engine.request import Request, RequestStatus
from phase4_scheduler.engine.scheduler import Scheduled, Scheduler, SchedulerOutput
from phase4_scheduler.features.structured_output.grammar import LazyCompiler, RequestGrammar

LONGEST_PAUSE = 0.05  # seconds in which an engine that waits for a grammar alone hears no command


def grammar_of(request: Request) -> Future[RequestGrammar] | None:
    """Its grammar, once that is compiled; None: it has none."""
    return request.extras.get("grammar")


def mask_under_way(request: Request) -> Future[None] | None:
    """Its next mask, while a thread makes it."""
    mask = request.extras.get("mask")
    return None if mask is None or mask.done() else mask


class StructuredScheduler(Scheduler):
    """A request joins the queue when its grammar is compiled, and a step when its mask is made.

    Attributes:
        compiling: requests that wait for it.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.compiling: dict[Request, Future] = {}

    @property
    def num_waiting(self) -> int:
        return super().num_waiting + len(self.compiling)

    @property
    def waits_for_others(self) -> bool:
        return super().waits_for_others or bool(self.under_way)

    @property
    def under_way(self) -> list[Future]:
        """Grammars and masks that threads are making."""
        masks = [mask for request in self.running if (mask := mask_under_way(request))]
        return [*self.compiling.values(), *masks]

    def add(self, request: Request) -> None:
        grammar = grammar_of(request)
        if grammar is None or grammar.done():
            super().add(request)
            return
        self.limits.check(request.num_prompt_tokens, request.max_tokens)
        request.status = RequestStatus.WAITING
        self.compiling[request] = grammar

    def schedule(self) -> SchedulerOutput:
        for request, grammar in list(self.compiling.items()):
            if grammar.done() and self.compiling.pop(request, None):
                super().add(request)
        output = super().schedule()
        if not output.scheduled and (under_way := self.under_way):
            wait(under_way, LONGEST_PAUSE, FIRST_COMPLETED)
        return output

    def tokens_to_compute(self, request: Request, computed: int) -> int:
        if request.status is RequestStatus.RUNNING and mask_under_way(request):
            return 0
        return super().tokens_to_compute(request, computed)

    def remove(self, request: Request) -> None:
        if self.compiling.pop(request, None) is None:
            super().remove(request)


class StructuredRunner(ModelRunner):
    """Masks the logits from which a token of such a request is sampled.

    Attributes:
        compiler: the core's. A grammar that failed raises here, which ends its request alone.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._masked: list[int] = []  # rows of the step, and what is banned in each
        self._banned = torch.empty(0)

    def sample(self, scheduled: Sequence[Scheduled], batch: StepBatch, hidden: Tensor) -> list[Sampled]:
        asked, rows = [], []
        for s, first in zip(scheduled, batch.first_rows, strict=True):
            request = s.request
            if s.samples and (future := grammar_of(request)):
                grammar = future.result()
                if mask := mask_under_way(request):
                    mask.result()  # it was preempted, and is back before its mask
                grammar.read(request.output_token_ids)
                certain = len(request.token_ids) - s.num_computed  # the tokens behind them are drafts
                drafts = s.token_ids[certain:]
                asked.append((grammar, drafts))
                rows += range(first + certain - 1, first + certain + len(drafts))
        if not asked:
            return super().sample(scheduled, batch, hidden)
        self._banned = torch.from_numpy(self.compiler().banned(asked)).to(hidden.device)
        self._masked = rows
        try:
            return super().sample(scheduled, batch, hidden)
        finally:
            self._masked = []

    @torch.inference_mode()
    def logits(self, hidden: Tensor, rows: Sequence[int]) -> Tensor:
        logits = super().logits(hidden, rows)
        if not self._masked:
            return logits
        if self._masked == list(rows):
            return logits.masked_fill_(self._banned, -torch.inf)
        place = {row: i for i, row in enumerate(self._masked)}
        if at := [i for i, row in enumerate(rows) if row in place]:
            banned = self._banned[[place[rows[i]] for i in at]]
            logits[at] = logits[at].masked_fill(banned, -torch.inf)
        return logits


class StructuredCore(EngineCore):
    """Has the grammar of a new request compiled, and slow masks made ahead."""

    def __init__(self, *args, compiler: LazyCompiler, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.compiler = self.runner.compiler = compiler

    def add(self, request: Request) -> None:
        wanted = getattr(request.params, "structured_outputs", None)
        if wanted is not None:
            request.extras["grammar"] = self.compiler.submit(wanted.source)
        super().add(request)

    def hand_out(self, s: Scheduled, result: Sampled, token_ids: list[int]) -> EngineCoreOutput:
        request = s.request
        if not request.finished and (grammar := grammar_of(request)) and grammar.result().slow:
            request.extras["mask"] = self.compiler.look_ahead(grammar.result(), request.output_token_ids)
        return super().hand_out(s, result, token_ids)

    def useful_drafts(self, request: Request, sampled: Sequence[int], drafts: Any) -> Any:
        """With speculation: the drafts before the first that the grammar refuses."""
        drafts = super().useful_drafts(request, sampled, drafts)
        if (future := grammar_of(request)) is None or not drafts.token_ids:
            return drafts
        grammar = future.result()
        if grammar.slow:  # none: they would cost a mask each
            return drafts.first(0)
        grammar.read(request.output_token_ids)
        return drafts.first(max(0, grammar.num_allowed([*sampled, *drafts.token_ids]) - len(sampled)))
