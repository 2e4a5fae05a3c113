"""The decisions of a learner's scheduler beside those that were recorded from the real vLLM 0.32."""

import gzip
import json
from importlib import import_module
from typing import Any

from labkit.paths import ROOT

RECORDINGS = ROOT / "tests" / "phase4_scheduler" / "engine" / "vllm_0_32_plain.jsonl.gz"
STOP = 7  # the token that ends a text in the recordings
Step = dict[str, Any]


def workloads(most: int | None = None) -> list[dict[str, Any]]:
    """The recorded workloads that are served first come, first served."""
    with gzip.open(RECORDINGS, "rt") as file:
        found = [json.loads(line) for line in file]
    return [r for r in found if r["config"]["policy"] == "fcfs"][:most]


def first_difference(package: str, recording: dict[str, Any]) -> str:
    """Serve a recorded workload with the scheduler and the blocks of a package, such as `my_engine`. "": as vLLM did."""
    replay = Replay(package, recording)
    for theirs in recording["steps"]:
        where = f"workload {recording['seed']}, step {theirs['step']}"
        try:
            ours = replay.step(theirs["step"])
        except Exception as error:
            return f"{where}: yours stops, with {type(error).__name__}: {error}"
        theirs = theirs | {"finished": sorted(theirs["finished"])}
        for what, mine in ours.items():
            if mine != theirs[what]:
                return f"{where}, {what}: yours {mine}, vLLM's {theirs[what]}"
    return ""


class Replay:
    """A recorded workload, to be decided once more, step by step."""

    def __init__(self, package: str, recording: dict[str, Any]) -> None:
        self.parts, config = import_module(f"{package}.scheduler"), recording["config"]
        manager = import_module(f"{package}.blocks").BlockManager
        sizes = (config[name] for name in ("num_blocks", "block_size", "prefix_caching"))
        names = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "chunked_prefill")
        limits = self.parts.Limits(*(config[name] for name in (*names, "long_prefill_token_threshold")))
        self.scheduler = self.parts.Scheduler(limits, manager(*sizes))
        self.wanted = {r["id"]: r for r in recording["requests"]}
        self.requests: dict[int, Any] = {}

    def step(self, number: int) -> Step:
        """One step, in the words of a recording."""
        scheduler, requests = self.scheduler, self.requests
        for i, r in self.wanted.items():
            if r["arrival"] == number:
                requests[i] = self.parts.Request(str(i), r["prompt"], r["max_tokens"], frozenset({STOP}))
                scheduler.waiting.append(requests[i])
        alive = [i for i, request in requests.items() if not request.finish_reason]
        aborted = [i for i in self.wanted if i in alive and self.wanted[i].get("abort_at") == number]
        for i in aborted:
            scheduler.finish(requests[i], "abort")
        scheduled = scheduler.schedule()
        ours = {
            "aborted": aborted,
            "scheduled": [[int(s.request.name), s.num_tokens] for s in scheduled],
            "preempted": sorted(int(request.name) for request in scheduler.preempted),
            "computed": {s.request.name: s.first for s in scheduled},
            "running": [int(request.name) for request in scheduler.running],
            "waiting": [int(request.name) for request in scheduler.waiting],
            "free_blocks": scheduler.manager.allocator.num_free,
            "blocks": {s.request.name: list(s.request.blocks) for s in scheduled},
        }
        grown = [s.request for s in scheduled if s.samples]
        scheduler.update(grown, [self.next_token(request) for request in grown])
        ended = [s.request for s in scheduled if s.request.finish_reason]
        return ours | {"finished": sorted(int(request.name) for request in ended)}

    def next_token(self, request: Any) -> int:
        """What the recording's "model" writes next."""
        i, place = int(request.name), len(request.token_ids)
        ends = self.wanted[i].get("stop_after") == place - request.num_prompt_tokens + 1
        return STOP if ends else (i * 7919 + place * 104729) % 5000 + 100
