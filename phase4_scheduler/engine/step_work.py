"""The work of one step: from the scheduler's decision to one token for each request that is ready.

And what happens when it fails for somebody: that request ends with its error, and the others never notice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from phase2_attention_kvcache.model.logprobs import report_logprobs
from phase2_attention_kvcache.model.sampling import BadLogitsError, Sampler
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase4_scheduler.engine.answers import Answer, Group
from phase4_scheduler.engine.model_runner import ModelRunner
from phase4_scheduler.engine.request import Request
from phase4_scheduler.engine.scheduler import Scheduled, Scheduler, SchedulerOutput

PROMPT_ROWS = 256  # scores of a whole prompt at a time would take a gigabyte with a large vocabulary


class StepWork:
    """Computes and samples a step.

    Args:
        output: what the scheduler decided. Answers that are split off join it.
        answers: the living ones, by the scheduler's request id. Those that are split off join them.
        fail: called as `fail(group, message)` for a request that cannot go on.

    After `run`: `tokens` holds a token (or None) for each entry of `output.scheduled`, and `logprobs` the log
    probabilities of those who asked, by request id.
    """

    def __init__(
        self,
        output: SchedulerOutput,
        scheduler: Scheduler,
        runner: ModelRunner,
        sampler: Sampler,
        answers: dict[str, Answer],
        fail: Callable[[Group, str], None],
    ) -> None:
        self.output, self.scheduler, self.runner, self.sampler = output, scheduler, runner, sampler
        self.answers, self.fail = answers, fail
        self.tokens: list[int | None] = []
        self.logprobs: dict[str, dict[int, float]] = {}

    def run(self) -> None:
        hidden, rows = self._compute()
        picked = self._sample(hidden, rows)
        self.tokens = [picked.get(s.request.request_id) for s in self.output.scheduled]

    # ------------------------------------------------------------------ computing

    def _compute(self) -> tuple[torch.Tensor, list[tuple[Scheduled, int]]]:
        """Run the model. Returns hidden states, and for each request that was computed its first row there."""
        self.runner.kv_cache.apply_copies(self.output.copies)
        computed = self.output.scheduled
        try:
            hidden = self.runner.execute(computed)
        except Exception as error:
            warnings.warn(
                f"a step of {len(computed)} requests failed ({type(error).__name__}: {error}); each is computed alone",
                stacklevel=2,
            )
            hidden = None
        if hidden is None:  # out here, where the error no longer holds on to the memory of the failed step
            hidden, computed = self._compute_one_by_one()
        rows, first = [], 0
        for s in computed:
            rows.append((s, first))
            first += s.num_tokens
        return hidden, rows

    def _compute_one_by_one(self) -> tuple[torch.Tensor, list[Scheduled]]:
        """A step failed, and nobody can say because of whom. So each has a step alone; who fails again ends."""
        pieces, computed, broken_blocks = [], [], set()
        size = self.runner.kv_cache.block_size
        tables = [
            list(s.request.block_table.block_ids) for s in self.output.scheduled
        ]  # failing empties them
        for s, blocks in zip(self.output.scheduled, tables, strict=True):
            to_fill = blocks[s.num_computed // size :]
            if s.request.finished:  # another answer to the same prompt failed
                broken_blocks.update(to_fill)
                continue
            if not broken_blocks.isdisjoint(blocks):  # it counted on a block that was never filled
                broken_blocks.update(to_fill)
                self.scheduler.restart(s.request)
                continue
            try:
                # A copy: a runner may use the same memory for its next result.
                pieces.append(self.runner.execute([s]).clone())
                computed.append(s)
                continue
            except Exception as error:
                message = f"{type(error).__name__}: {error}"
            broken_blocks.update(to_fill)
            self.fail(self.answers[s.request.request_id].group, message)
        model = self.runner.model
        empty = torch.empty(0, model.config.d_model, dtype=model.dtype, device=model.device)
        return torch.cat([empty, *pieces]), computed

    # ------------------------------------------------------------------ sampling

    def _sample(self, hidden: torch.Tensor, rows: list[tuple[Scheduled, int]]) -> dict[str, int]:
        """One token for each request whose tokens are all computed, by request id."""
        ready: list[Answer] = []
        last_rows: list[int] = []
        for s, first in rows:
            answer = self.answers.get(s.request.request_id)
            if answer is not None and answer.group.prompt_logprobs is not None:
                try:
                    self._note_prompt_logprobs(answer.group, s, hidden[first : first + s.num_tokens])
                except Exception as error:
                    self.fail(answer.group, f"{type(error).__name__}: {error}")
            if s.samples and not s.request.finished:
                for each in self._split_answers(answer):
                    ready.append(each)
                    last_rows.append(first + s.num_tokens - 1)
        logits, ready = self._logits(hidden, last_rows, ready)
        while ready:
            try:
                sampled = self.sampler.sample(
                    logits,
                    [a.group.params for a in ready],
                    [a.request.prompt_token_ids for a in ready],
                    [a.request.output_token_ids for a in ready],
                    [a.generator for a in ready],
                )
            except BadLogitsError as error:  # these requests are lost; the others are sampled again
                for i in error.rows:
                    self.fail(ready[i].group, str(error))
                keep = [i for i, a in enumerate(ready) if not a.request.finished]
                logits, ready = logits[keep], [ready[i] for i in keep]
                continue
            names = [a.request.request_id for a in ready]
            self.logprobs = {n: entry for n, entry in zip(names, sampled.logprobs) if entry is not None}
            return dict(zip(names, sampled.token_ids, strict=True))
        return {}

    def _logits(
        self, hidden: torch.Tensor, rows: list[int], ready: list[Answer]
    ) -> tuple[torch.Tensor | None, list[Answer]]:
        """Scores for these rows. If that fails, for each alone; who fails again ends."""
        if not ready:
            return None, []
        try:
            return self.runner.logits(hidden, rows), ready
        except Exception:
            pass
        pieces, still_ready = [], []
        for row, answer in zip(rows, ready, strict=True):
            try:
                pieces.append(self.runner.logits(hidden, [row]))
                still_ready.append(answer)
                continue
            except Exception as error:
                message = f"{type(error).__name__}: {error}"
            self.fail(answer.group, message)
        kept = [(p, a) for p, a in zip(pieces, still_ready, strict=True) if not a.request.finished]
        return (torch.cat([p for p, _ in kept]) if kept else None), [a for _, a in kept]

    def _split_answers(self, answer: Answer) -> list[Answer]:
        """When the prompt of a request with n answers is computed, n - 1 others fork off from its blocks.

        Returns:
            The answer, and those that were split off right now.
        """
        parent, group, answers = answer.request, answer.group, [answer]
        while parent.num_seats > 1:
            index = len(group.answers)
            request_id = f"{group.request_id}#{index}"
            while request_id in self.answers:
                request_id += "#"
            child = Request(
                request_id,
                parent.prompt_token_ids,
                group.params,
                parent.arrival_time,
                parent.priority,
                self.runner.model.config.eos_token_ids,
            )
            self.scheduler.fork(self.output, parent, child)
            answers.append(Answer(group, index, child))
            group.answers.append(answers[-1])
            self.answers[request_id] = answers[-1]
        return answers

    def _note_prompt_logprobs(self, group: Group, s: Scheduled, hidden: torch.Tensor) -> None:
        """Each row of a prompt predicts the prompt's next token; say how likely it was."""
        prompt, wanted = group.prompt_token_ids, group.params.prompt_logprobs
        num_rows = min(s.num_tokens, len(prompt) - 1 - s.num_computed)
        if num_rows <= 0:
            return
        for first in range(0, num_rows, PROMPT_ROWS):
            rows = range(first, min(first + PROMPT_ROWS, num_rows))
            following = [prompt[s.num_computed + 1 + row] for row in rows]
            logits = self.runner.logits(hidden, rows)
            reports = report_logprobs(logits, [SamplingParams(logprobs=wanted)] * len(rows), following)
            group.prompt_logprobs[s.num_computed + 1 + first : s.num_computed + 1 + first + len(rows)] = (
                reports
            )
