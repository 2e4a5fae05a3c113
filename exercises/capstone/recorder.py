"""A recording of a learner's engine: one event a step, as the glass engine on the course's page shows it."""

from collections.abc import Callable
from functools import partial
from typing import Any


class Recorder:
    """Listens to an engine from outside. After each step `keep` gets an event."""

    def __init__(self, engine: Any, keep: Callable[[dict[str, Any]], Any]) -> None:
        self.engine, self.keep, self.num_steps = engine, keep, 0
        self.blocks: dict[str, list[int]] = {"taken": [], "hit": [], "freed": [], "evicted": []}
        manager, self._taking = engine.scheduler.manager, False
        for owner, name, listens in (
            (manager, "take", self._take),
            (manager, "hit", self._hit),
            (manager, "forget", self._forget),
            (manager, "free", self._free),
            (engine.scheduler, "schedule", self._schedule),
            (engine, "step", self._step),
        ):
            setattr(owner, name, partial(listens, getattr(owner, name)))

    def _take(self, method: Any) -> int:
        self._taking = True
        block = method()
        self._taking = False
        self.blocks["taken"].append(block)
        return block

    def _hit(self, method: Any, block: int) -> None:
        self.blocks["hit"].append(block)
        method(block)

    def _forget(self, method: Any, block: int) -> None:
        if self._taking:  # a block that is forgotten unfilled was no eviction
            self.blocks["evicted"].append(block)
        method(block)

    def _free(self, method: Any, request: Any, num_filled: int | None = None) -> None:
        held, counts = request.blocks[::-1], self.engine.scheduler.manager.allocator.ref_count
        method(request, num_filled)
        self.blocks["freed"] += [block for block in held if not counts[block]]

    def _schedule(self, method: Any) -> list[Any]:
        self.scheduled = method()
        self.tables = {s.request.name: list(s.request.blocks) for s in self.scheduled}
        return self.scheduled

    def _step(self, method: Any) -> list[Any]:
        outputs, scheduler = method(), self.engine.scheduler
        ended = (s.request for s in self.scheduled if s.request.finish_reason)
        event = {
            "step": self.num_steps,
            "tokens": {s.request.name: s.num_tokens for s in self.scheduled},
            "computed": {s.request.name: s.first for s in self.scheduled},
            "blocks": self.tables,
            "preempted": [request.name for request in scheduler.preempted],
            "finished": {request.name: request.finish_reason for request in ended},
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "free_blocks": scheduler.manager.allocator.num_free,
        } | self.blocks
        self.keep(event)
        self.blocks = {kind: [] for kind in self.blocks}
        self.num_steps += 1
        return outputs
