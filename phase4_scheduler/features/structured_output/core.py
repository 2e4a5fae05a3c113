"""Grammars in the engine: compiled beside the steps, consulted before each token is sampled.

A request whose masks are slow lets a step pass until a thread has the next one: the other requests do not wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from phase4_scheduler.engine.core import EngineCore, EngineCoreOutput
from phase4_scheduler.engine.model_runner import ModelRunner, Sampled, StepBatch
from phase4_scheduler.engine.request import Request, RequestStatus
from phase4_scheduler.engine.scheduler import Scheduled, Scheduler, SchedulerOutput
from phase4_scheduler.features.structured_output.grammar import LazyCompiler, RequestGrammar

# By a byte of a mask, how high the logits of its eight tokens may be: [256, 8].
CEILINGS = torch.where(torch.arange(256)[:, None] >> torch.arange(8) & 1 == 1, torch.inf, -torch.inf)
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
        self._asking: list[tuple[Scheduled, int]] = []  # in this step, and the first row of each

    def sample(self, scheduled: Sequence[Scheduled], batch: StepBatch, hidden: Tensor) -> list[Sampled]:
        rows = zip(scheduled, batch.first_rows, strict=True)
        self._asking = [(s, first) for s, first in rows if s.samples and grammar_of(s.request)]
        try:
            return super().sample(scheduled, batch, hidden)
        finally:
            self._asking = []

    @torch.inference_mode()
    def logits(self, hidden: Tensor, rows: Sequence[int]) -> Tensor:
        # Launched first: a GPU computes them beside the masks, and a CPU's threads have not gone to sleep.
        logits, asked, masked = super().logits(hidden, rows), [], []
        for s, first in self._asking:
            request = s.request
            grammar = grammar_of(request).result()
            if mask := mask_under_way(request):
                mask.result()  # it was preempted, and is back before its mask
            grammar.read(request.output_token_ids)
            certain = len(request.token_ids) - s.num_computed  # the tokens behind them are drafts
            drafts = s.token_ids[certain:]
            asked.append((grammar, drafts))
            masked += range(first + certain - 1, first + certain + len(drafts))
        if set(masked).isdisjoint(rows):
            return logits
        allowed = torch.from_numpy(self.compiler().allowed(asked)).to(logits.device)
        # Eight tokens at a time: with an irregular mask, `masked_fill` takes five times as long as this and `minimum`.
        ceilings = F.embedding(allowed.int(), CEILINGS.to(logits)).flatten(1)[:, : logits.shape[1]]
        if masked == list(rows):
            return torch.minimum(logits, ceilings)
        place = {row: i for i, row in enumerate(masked)}
        at = [i for i, row in enumerate(rows) if row in place]
        logits[at] = torch.minimum(logits[at], ceilings[[place[rows[i]] for i in at]])
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
