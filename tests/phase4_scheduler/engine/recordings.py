"""What all recordings of the real vLLM's decisions have in common: how they are read, replayed and compared, step by step."""

import gzip
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase3_paged_attention.paging import BlockManager
from phase4_scheduler.engine import Request, Scheduled, Scheduler, SchedulerConfig, SchedulerOutput
from phase4_scheduler.engine.request import RequestLimits

STOP = 7
Step = dict[str, Any]


class TakesAnything(Scheduler):
    """Also a request that can never finish in this cache: vLLM takes it, and is stuck."""

    limits = property(lambda self: RequestLimits(sys.maxsize))


class Replay:
    """A recorded workload, decided once more by the course's scheduler.

    A kind of recording overrides how the parts are made, what the "model" samples, and what else a step tells.
    """

    def __init__(self, recording: dict[str, Any]) -> None:
        self.recording, self.config = recording, recording["config"]
        self.wanted = {r["id"]: r for r in recording["requests"]}
        self.requests: dict[int, Request] = {}
        self.manager = self.make_manager()
        names = self.config.keys() & SchedulerConfig.__dataclass_fields__.keys()
        assert len(names) == 6
        self.scheduler = self.make_scheduler(SchedulerConfig(**{name: self.config[name] for name in names}))

    def make_manager(self) -> BlockManager:
        return BlockManager(*self.cache_sizes)

    @property
    def cache_sizes(self) -> tuple[int, int, bool]:
        return tuple(self.config[name] for name in ("num_blocks", "block_size", "prefix_caching"))

    def make_scheduler(self, config: SchedulerConfig) -> Scheduler:
        return TakesAnything(config, self.manager)

    def prompt(self, r: dict[str, Any]) -> list[int]:
        return r["prompt"]

    def true_token(self, i: int, place: int) -> int:
        """What the recording's "model" writes as token number `place` of request i."""
        ends = self.wanted[i].get("stop_after") == place - self.requests[i].num_prompt_tokens + 1
        return STOP if ends else (i * 7919 + place * 104729) % 5000 + 100

    def sample(self, s: Scheduled) -> list[int]:
        return [self.true_token(int(s.request.request_id), s.request.num_tokens)]

    def decided(self, scheduled: dict[str, Scheduled]) -> Step:
        """What this kind of recording tells of a decision besides."""
        return {"blocks": {name: list(s.request.block_table.block_ids) for name, s in scheduled.items()}}

    def updated(self, scheduled: dict[str, Scheduled], sampled: dict[str, list[int]]) -> Step:
        """What it tells of a step that is done."""
        return {}

    def steps(self) -> Iterator[tuple[Step, Step]]:
        """(recorded step, our step) for each step; then a check that nothing leaked."""
        for theirs in self.recording["steps"]:
            yield theirs, self.step(theirs["step"])
        self.manager.check_integrity()
        if not self.recording["steps"][-1].get("stuck"):
            assert not self.scheduler.has_requests and all(r.finished for r in self.requests.values())
            assert self.manager.num_free_blocks == self.manager.num_blocks - 1

    def arrive(
        self, number: int, add: Callable[[Request], None], abort: Callable[[Request], None]
    ) -> list[int]:
        """Requests come, and others are aborted: the ids of these."""
        for i, r in self.wanted.items():
            if r["arrival"] == number:
                params = SamplingParams(temperature=0, max_tokens=r["max_tokens"], stop_token_ids=[STOP])
                arrived = number + i * 1e-6
                self.requests[i] = Request(str(i), self.prompt(r), params, arrived, r["priority"])
                add(self.requests[i])
        alive = [i for i, request in self.requests.items() if not request.finished]
        aborted = [i for i in self.wanted if i in alive and self.wanted[i].get("abort_at") == number]
        for i in aborted:
            abort(self.requests[i])
        return aborted

    def decision(self, number: int, output: SchedulerOutput) -> Step:
        """What a recording tells of a step that has just been decided."""
        assert sum(s.num_tokens for s in output.scheduled) <= self.config["max_num_batched_tokens"]
        scheduled = {s.request.request_id: s for s in output.scheduled}
        return {
            "step": number,
            "scheduled": [[int(name), s.num_tokens] for name, s in scheduled.items()],
            "preempted": sorted(int(r.request_id) for r in output.preempted),
            "computed": {name: s.num_computed for name, s in scheduled.items()},
            "running": [int(r.request_id) for r in self.scheduler.running],
            "waiting": [int(r.request_id) for r in self.scheduler.waiting],
            "free_blocks": self.manager.num_free_blocks,
        } | self.decided(scheduled)

    def step(self, number: int) -> Step:
        scheduler = self.scheduler
        aborted = self.arrive(number, scheduler.add, lambda request: scheduler.finish(request, "abort"))
        output: SchedulerOutput = scheduler.schedule()
        ours = self.decision(number, output) | {"aborted": aborted}
        scheduled = {s.request.request_id: s for s in output.scheduled}
        sampled = {name: self.sample(s) for name, s in scheduled.items() if s.samples}
        finished = scheduler.update(output, [sampled.get(name, []) for name in scheduled])
        ours["finished"] = sorted(int(r.request_id) for r in finished)
        return ours | self.updated(scheduled, sampled)


def equal_steps(path: Path, kind: type[Replay]) -> list[tuple[dict[str, Any], list[Step]]]:
    """Each recording with its steps, after a comparison of every field of every step."""
    found = []
    with gzip.open(path, "rt") as file:
        recordings = [json.loads(line) for line in file]
    for recording in recordings:
        found.append((recording, []))
        for theirs, ours in kind(recording).steps():
            theirs = {**theirs, "finished": sorted(theirs["finished"])}
            stuck = theirs.pop("stuck", False)
            assert ours == theirs, f"workload {recording['seed']}, step {theirs['step']}"
            assert not stuck or not ours["scheduled"]
            found[-1][1].append(ours)
    return found
