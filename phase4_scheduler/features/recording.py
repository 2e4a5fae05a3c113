"""Recording: one small record a step, from which pictures, the simulator and notebooks are drawn; and counts for metrics.

Changes nothing. `record(engine, "events.jsonl")` begins, `record(engine, None)` ends; an engine that is not recorded pays
for two counts a request. Attaches to: `EngineCore.step` and `execute`; while it records, to the block manager (phase 3,
sharing/recording.py).
"""

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.machine import synchronize
from phase3_paged_attention.sharing import recorded
from phase4_scheduler.assembly import Feature
from phase4_scheduler.engine.core import EngineCore, EngineCoreOutputs
from phase4_scheduler.engine.engine import LLMEngine
from phase4_scheduler.engine.model_runner import Sampled
from phase4_scheduler.engine.request import Request
from phase4_scheduler.engine.scheduler import SchedulerOutput

Event = dict[str, Any]


@dataclass
class EngineStats:
    """Counts since the start.

    Attributes:
        prefix_queries: prompt tokens looked up in the prefix cache, not again after a preemption.
        prefix_hits: those of them that were found.
    """

    num_preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0


class RecordingCore(EngineCore):
    """
    Attributes:
        stats: counts since the start.
        recorder: takes the event of each step; None: they are not recorded.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.stats = EngineStats()
        self.recorder: Callable[[Event], None] | None = None

    def execute(self, output: SchedulerOutput) -> list[Sampled]:
        results = super().execute(output)
        if self.recorder is not None:
            synchronize(self.model.device.type)  # a GPU may still be at it, and the next step would pay
        return results

    def step(self) -> EngineCoreOutputs:
        step = super().step()
        output, caching = step.scheduler_output, self.block_manager.enable_prefix_caching
        self.stats.num_preemptions += len(output.preempted)
        for s in output.scheduled:
            request = s.request
            first = request.first_scheduled_time == step.began
            if first and caching and not request.skip_reading_prefix_cache:
                self.stats.prefix_queries += request.num_prompt_tokens
                self.stats.prefix_hits += request.num_cached_tokens - self.num_external_tokens(request)
        if self.recorder is not None and output.scheduled:
            try:
                self.recorder(self.step_event(step))
            except Exception as error:  # it must not stop the engine
                warnings.warn(f"recording stopped: {type(error).__name__}: {error}", stacklevel=2)
                self.recorder = None
        return step

    def num_external_tokens(self, request: Request) -> int:
        """Cached tokens that did not come from the prefix cache."""
        return 0

    def step_event(self, step: EngineCoreOutputs) -> Event:
        """What happened in a step.

        Returns:
            step, time (when it began), seconds (how long it took); by request: tokens (computed in this step),
            computed (before it), blocks, finished (why); preempted; how many are running and waiting after
            it; free_blocks and usage after it; ids of blocks taken, hit, freed, evicted.
        """
        manager, output = self.block_manager, step.scheduler_output
        parts = {s.request.request_id: s for s in output.scheduled}
        return {
            "step": self.num_steps - 1,
            "time": step.began,
            "seconds": step.ended - step.began,
            "tokens": {name: s.num_tokens for name, s in parts.items()},
            "computed": {name: s.num_computed for name, s in parts.items()},
            "blocks": {name: list(s.request.block_table.block_ids) for name, s in parts.items()},
            "preempted": [request.request_id for request in output.preempted],
            "finished": {name: s.request.finish_reason for name, s in parts.items() if s.request.finished},
            "running": len(self.scheduler.running),
            "waiting": self.scheduler.num_waiting,
            "free_blocks": manager.num_free_blocks,
            "usage": manager.usage,
            **vars(manager.take_journal()),
        }


class Recording(Feature):
    core = RecordingCore


def record(engine: LLMEngine | EngineCore, where: str | Path | Callable[[Event], None] | None) -> None:
    """Write down every step of an engine from now on: into a file of JSON lines, or into a function. None stops it."""
    core = engine if isinstance(engine, EngineCore) else engine.core
    if where is not None and not callable(where):
        where = into_file(where)  # raises before anything has changed
    if where is not None:
        recorded(core.block_manager).take_journal()
    core.recorder = where


def into_file(path: str | Path) -> Callable[[Event], None]:
    """Write events to a file, one line of JSON each. What the file held before is gone."""
    path = Path(path)
    path.write_text("", encoding="utf-8")

    def append(event: Event) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    return append
