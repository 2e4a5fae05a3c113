"""Steps in which all that run decode: what happens in each is known beforehand, so nobody has to be asked.

Most steps of a server look alike: every running request gets one token more. The scheduler would look at each of them in
each step, to find the few to which something happens. Here a calendar says it: a request needs a block every
`block_size` steps, and ends after `max_tokens`. So a step costs as much as happens in it, and not as much as there are
requests. The books of a request are brought up to date when something happens to it.

Waiting requests are admitted by the scheduler itself. Where blocks run out, or a prompt is cut into pieces, the books of
all are brought up to date, and the scheduler decides as ever. The schedule is the same to the last block (a test holds
it to that).
"""

from __future__ import annotations

from collections import defaultdict

from phase4_scheduler.engine import Request, Scheduler, SchedulerOutput
from phase4_scheduler.simulator.latency import RequestRecord
from phase4_scheduler.simulator.step_size import StepSize

NOBODY = SchedulerOutput()


def all_decode(scheduler: Scheduler) -> bool:
    """Whether every running request lacks one token only, its last one. (Drafts, connectors and windows are beyond this file.)"""
    plain = scheduler.num_speculative_tokens == 0 and scheduler.connector is None
    return (
        plain
        and scheduler.block_manager.sliding_window is None
        and all(len(r.token_ids) - r.num_computed_tokens == 1 for r in scheduler.running)
    )


class QuietSteps:
    """The steps from now on, while all that run decode.

    Args:
        scheduler: of it `all_decode` is true.
        records: of its requests, by id; the times of their tokens are written there.
        token: what every step "samples".
    """

    def __init__(self, scheduler: Scheduler, records: dict[str, RequestRecord], token: int) -> None:
        self.scheduler, self.records, self.token = scheduler, records, token
        self.manager, self.block_size = scheduler.block_manager, scheduler.block_manager.block_size
        self._ends: list[float] = []  # when each step so far was over
        # By id: steps before it came, and its computed tokens then.
        self._joined: dict[str, tuple[int, int]] = {}
        self._context = 0  # tokens that they attend to in the next step, all together
        # The calendar. Whoever takes a block in step i is in place i % block_size, in the order of `running`.
        self._takers: list[list[Request]] = [[] for _ in range(self.block_size)]
        self._endings: defaultdict[int, list[Request]] = defaultdict(list)
        for request in scheduler.running:
            self._join(request)

    def decide(self) -> tuple[SchedulerOutput, StepSize] | None:
        """The next step: who is admitted in it, and how much it has to do. None: this is no quiet step."""
        scheduler, manager, step = self.scheduler, self.manager, len(self._ends)
        num_running, waits = len(scheduler.running), len(scheduler.waiting) > 0
        takers = self._takers[step % self.block_size]
        if num_running > len(self._joined) or len(takers) > manager.num_free_blocks:
            return None
        for request in takers:
            self._allocate(request, 1)
        size = StepSize(num_running, num_running, self._context, self._context)
        filling, ending = self._takers[(step + 1) % self.block_size], self._endings.get(step)
        if waits or (ending and any(request in filling for request in ending)):
            # Their blocks are full with this step, and may be looked for, or freed: they get their hashes now. (The
            # hashes of others can wait until they take their next block.)
            for request in filling:
                self._allocate(request, 1)
        admitted = NOBODY
        if waits:
            admitted, budget = SchedulerOutput(), scheduler.config.max_num_batched_tokens - num_running
            scheduler.admit_waiting(admitted, budget, scheduler.prefill_threshold)
            for s in admitted.scheduled:
                s.request.num_computed_tokens += s.num_tokens
            size = size.beside(StepSize.of((s.num_computed, s.num_tokens) for s in admitted.scheduled))
        return (admitted, size) if size.num_requests else None

    def hand_out(self, admitted: SchedulerOutput, end: float) -> list[Request]:
        """The step is over. Returns the requests that end with it, in order."""
        step = len(self._ends)
        self._ends.append(end)
        self._context += len(self._joined)
        ended = self._endings.pop(step, [])
        for request in ended:
            self._leave(request)
            self.scheduler.finish(request, "length")
        if admitted.scheduled:
            sampling = [s.request for s in admitted.scheduled if s.samples]
            tokens = [self.token if s.samples else None for s in admitted.scheduled]
            ended += self.scheduler.update(admitted, tokens)
            for request in sampling:
                self.records[request.request_id].token_times.append(end)
                if not request.finished:
                    self._join(request)
        return ended

    def end(self) -> None:
        """Bring the books of all up to date."""
        for request in self.scheduler.running:
            if request.request_id in self._joined:
                self._leave(request)

    def _join(self, request: Request) -> None:
        step, computed = len(self._ends), request.num_computed_tokens
        self._joined[request.request_id] = step, computed
        self._context += computed + 1
        self._takers[(step - computed) % self.block_size].append(request)
        self._endings[step + request.max_tokens - len(request.output_token_ids) - 1].append(request)

    def _leave(self, request: Request) -> None:
        request.num_computed_tokens = self._allocate(request, 0)
        step, computed = self._joined.pop(request.request_id)
        self._context -= request.num_computed_tokens + 1
        self._takers[(step - computed) % self.block_size].remove(request)
        request.output_token_ids += [self.token] * (len(self._ends) - step)
        self.records[request.request_id].token_times += self._ends[step:]

    def _allocate(self, request: Request, more: int) -> int:
        """Room for the tokens that are computed by now and some more. Returns how many are."""
        step, computed = self._joined[request.request_id]
        computed += len(self._ends) - step
        table, tokens = request.block_table, request.token_ids
        table.num_tokens = computed
        tokens += [self.token] * (computed + 1 - len(tokens))
        self.manager.allocate(table, tokens, computed + more)
        return computed
