"""Lets the real vLLM 0.32 decide the workloads of a recording once more, and writes down each of its steps.

    HF_HUB_OFFLINE=1 VLLM_PYTHON -m tests.phase4_scheduler.engine.record_decisions MODEL_FOLDER RECORDING.jsonl.gz

vLLM's own scheduler decides; only the model is replaced, so of MODEL_FOLDER only the settings are read. It runs in vLLM's
own environment and imports nothing of the course but the file that drives vLLM there. (vLLM: Apache 2.0; a recording: the
licence of this repository.)
"""

import gzip
import json
import queue
import sys
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from phase5_real_gpu.benchmarks import vllm_worker

STOP = 7
MOST_STEPS = 500


class Recorder:
    """A workload, decided by vLLM's scheduler in synchronous steps. A kind of recording overrides what differs."""

    def __init__(self, model_config: Any, workload: dict[str, Any], transfer: Any = None) -> None:
        model_config.max_model_len = workload["config"]["max_model_len"]
        self.workload, self.requests = workload, {}
        self.scheduler, self.hasher = vllm_worker.make_scheduler(model_config, workload["config"], transfer)

    def prompt(self, r: dict[str, Any]) -> list[int]:
        return r["prompt"]

    @property
    def goes_on(self) -> bool:
        return self.scheduler.has_requests()

    def run_model(self, output: Any, **more: Any) -> Any:
        """In the place of a model: the token of a place depends on the request and the place alone."""
        from vllm.v1.outputs import ModelRunnerOutput

        names = list(output.num_scheduled_tokens)
        return ModelRunnerOutput(
            names, {name: i for i, name in enumerate(names)}, list(map(self.sample, names)), **more
        )

    def sample(self, name: str) -> list[int]:
        request = self.scheduler.requests[name]
        if request.is_prefill_chunk:
            return []
        place = request.num_computed_tokens  # this step's are counted already
        ends = self.requests[name][1].get("stop_after") == place - request.num_prompt_tokens + 1
        return [STOP if ends else (int(name) * 7919 + place * 104729) % 5000 + 100]

    def decided(self, number: int, output: Any) -> dict[str, Any]:
        seen = vllm_worker.snapshot(number, self.scheduler, output)
        names = list(output.num_scheduled_tokens)
        return seen | {what: dict(zip(names, seen[what])) for what in ("computed", "blocks")}

    def step(self, number: int) -> dict[str, Any]:
        output = self.scheduler.schedule()
        seen = self.decided(number, output)
        self.scheduler.update_from_output(output, self.run_model(output))
        return seen

    def record(self) -> dict[str, Any]:
        """The workload with its steps: what was decided, and which requests ended."""
        from vllm.v1.request import Request, RequestStatus

        steps, wanted = [], self.workload["requests"]
        while len(steps) < MOST_STEPS and (len(self.requests) < len(wanted) or self.goes_on):
            number = len(steps)
            for r in wanted:
                if r["arrival"] == number:
                    request = Request(
                        str(r["id"]), self.prompt(r), vllm_worker.greedy(r["max_tokens"], stop_token_ids=[STOP]), None,
                        arrival_time=number + r["id"] * 1e-6, priority=r["priority"], block_hasher=self.hasher,
                    )  # fmt: skip
                    self.requests[request.request_id] = request, r
                    self.scheduler.add_request(request)
            alive = [(r["id"], request) for request, r in self.requests.values() if not request.is_finished()]
            aborted = [i for i, _ in alive if self.requests[str(i)][1].get("abort_at") == number]
            for i in aborted:
                self.scheduler.finish_requests(str(i), RequestStatus.FINISHED_ABORTED)
            seen = self.step(number)
            finished = sorted(i for i, request in alive if request.is_finished() and i not in aborted)
            steps.append(seen | dict(aborted=aborted, finished=finished))
        if len(self.requests) < len(wanted) or self.goes_on:
            steps[-1]["stuck"] = True
        return self.workload | dict(steps=steps)


class AsyncRecorder(Recorder):
    """vLLM's `AsyncScheduler`; the loop of its own `EngineCore` says when it decides and when a step comes back.

    "decided" (None: nothing) and "came_back" (the number of the step) stand apart.
    """

    def __init__(self, model_config: Any, workload: dict[str, Any]) -> None:
        from vllm.v1.engine.core import EngineCore

        super().__init__(model_config, workload)
        self.core, self.outputs = object.__new__(EngineCore), []  # with as much as its loop needs
        executor = SimpleNamespace(execute_model=self.execute, sample_tokens=lambda *args, **how: self.found)
        vars(self.core).update(
            scheduler=self.scheduler, vllm_config=self.scheduler.vllm_config, model_executor=executor,
            batch_queue_size=self.scheduler.vllm_config.max_concurrent_batches, batch_queue=deque(),
            aborts_queue=queue.Queue(), log_stats=False, is_pooling_model=False, is_mm_encoder_only=False,
            check_for_draft_tokens=False, _weight_version=None,
        )  # fmt: skip
        self.decide, self.update = self.scheduler.schedule, self.scheduler.update_from_output
        self.scheduler.schedule, self.scheduler.update_from_output = (
            self.watched_schedule,
            self.watched_update,
        )

    def execute(self, output: Any, **_: Any) -> Future:
        self.found = Future()
        self.found.set_result(self.run_model(output))
        return self.found

    def watched_schedule(self, *args: Any) -> Any:
        output = self.decide(*args)
        if output.num_scheduled_tokens or output.preempted_req_ids:
            self.turn["decided"] = self.decided(self.turn["step"], output)
        self.outputs.append((self.turn["step"], output))
        return output

    def watched_update(self, output: Any, found: Any) -> Any:
        if output.num_scheduled_tokens:
            self.turn["came_back"] = next(step for step, one in self.outputs if one is output)
        return self.update(output, found)

    def step(self, number: int) -> dict[str, Any]:
        self.turn = dict(step=number, decided=None, came_back=None)
        self.core.step_with_batch_queue()
        return self.turn


def record_again(path: Path, kind: type[Recorder] | None = None) -> None:
    settings = dict(only_scheduler=True, model=sys.argv[1], skip_tokenizer_init=True)
    model_config, recordings = vllm_worker.start(settings), []
    with gzip.open(path, "rt") as file:
        for workload in map(json.loads, file):
            own = AsyncRecorder if workload["config"].get("async_scheduling") else Recorder
            recordings.append((kind or own)(model_config, workload).record())
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        for recording in recordings:
            file.write((json.dumps(recording, separators=(",", ":")) + "\n").encode())


if __name__ == "__main__":
    record_again(Path(sys.argv[2]))
