"""The event stream: one small record a step. Pictures, the simulator and notebooks are drawn from it."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phase3_paged_attention.paging.block_table import BlockJournal
from phase4_scheduler.engine.core import EngineCoreOutputs
from phase4_scheduler.engine.scheduler import Scheduler

Event = dict[str, Any]


def into_file(path: str | Path) -> Callable[[Event], None]:
    """Write events to a file, one line of JSON each. What the file held before is gone."""
    path = Path(path)
    path.write_text("", encoding="utf-8")

    def append(event: Event) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    return append


def step_event(number: int, step: EngineCoreOutputs, scheduler: Scheduler, journal: BlockJournal) -> Event:
    """What happened in a step.

    Returns:
        step, time (when it began), seconds (how long it took); by request: tokens (computed in this step),
        computed (before it), blocks, finished (why); preempted; how many are running and waiting after
        it; free_blocks and usage after it; ids of blocks taken, hit, freed, evicted. With speculative decoding also,
        by request, drafted (tokens verified in this step; -1 is padding) and accepted (how many of them stood).
    """
    manager, output = scheduler.block_manager, step.scheduler_output
    parts = {s.request.request_id: s for s in output.scheduled}
    verified = {}
    if scheduler.num_speculative_tokens:
        drafted = {name: list(s.drafts) for name, s in parts.items()}
        accepted = {name: s.num_accepted for name, s in parts.items()}
        verified = {"drafted": drafted, "accepted": accepted}
    return {
        "step": number,
        "time": step.began,
        "seconds": step.ended - step.began,
        "tokens": {name: s.num_tokens for name, s in parts.items()},
        "computed": {name: s.num_computed for name, s in parts.items()},
        "blocks": {name: list(s.request.block_table.block_ids) for name, s in parts.items()},
        "preempted": [request.request_id for request in output.preempted],
        "finished": {name: s.request.finish_reason for name, s in parts.items() if s.request.finished},
        "running": len(scheduler.running),
        "waiting": len(scheduler.waiting) + len(scheduler.holding),
        "free_blocks": manager.num_free_blocks,
        "usage": manager.usage,
        **vars(journal),
        **verified,
    }


class StepRecorder:
    """Writes down every step, into a file of JSON lines or into a function, as long as that works.

    While it is there, the block manager keeps a journal.
    """

    def __init__(self, where: str | Path | Callable[[Event], None], scheduler: Scheduler) -> None:
        self._write = where if callable(where) else into_file(where)
        self._scheduler = scheduler
        scheduler.block_manager.journal = BlockJournal()

    def record(self, number: int, step: EngineCoreOutputs) -> bool:
        """Write a step down. False, with a warning, if that failed: recording must not stop the engine."""
        if not step.scheduler_output.scheduled:
            return True
        manager = self._scheduler.block_manager
        journal, manager.journal = manager.journal or BlockJournal(), BlockJournal()
        try:
            self._write(step_event(number, step, self._scheduler, journal))
        except Exception as error:
            warnings.warn(f"recording stopped: {type(error).__name__}: {error}", stacklevel=3)
            return False
        return True
