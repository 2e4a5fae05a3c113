"""Records what the real vLLM 0.32 decides while a step runs: `vllm_0_32_async.jsonl.gz`, 60 workloads.

    VLLM_PYTHON -m tests.phase4_scheduler.features.async_scheduling.record_vllm_async MODEL_FOLDER     (only its settings are read)

vLLM's own `AsyncScheduler` decides, and the loop of its own `EngineCore` says when; only the model is replaced. It runs in
vLLM's own environment. (vLLM: Apache 2.0; the recording: the licence of this repository.)
"""

import gzip
import json
import queue
import random
import sys
from collections import deque
from concurrent.futures import Future
from pathlib import Path

from phase5_real_gpu.benchmarks import vllm_worker
from tests.phase4_scheduler.engine import record_windows

HERE = Path(__file__).parent
STOP = record_windows.STOP
WORKLOADS = 60


def make_workload(seed):
    """As with a window, but with a cache that just holds the longest request, and some blocks more."""
    workload, rng = record_windows.make_workload(seed), random.Random(seed)
    config, requests = workload["config"], workload["requests"]
    del config["sliding_window"]
    longest = max(len(r["prompt"]) + r["max_tokens"] for r in requests)
    config["max_model_len"] = rng.choice([300, longest - rng.randint(0, 3)])
    config["num_blocks"] = 1 + -(-longest // config["block_size"]) + rng.randint(0, 6)
    config["async_scheduling"] = True
    workload["requests"] = [r for r in requests if len(r["prompt"]) < config["max_model_len"]]
    return workload


class FakeModel:
    """In the place of vLLM's executor: the token of a place depends on the request and the place alone."""

    def __init__(self, scheduler, workload):
        self.scheduler, self.wanted = scheduler, {str(r["id"]): r for r in workload["requests"]}

    def execute_model(self, output, non_block):
        from vllm.v1.outputs import ModelRunnerOutput

        names = list(output.num_scheduled_tokens)
        sampled = []
        for name in names:
            request, wanted = self.scheduler.requests[name], self.wanted[name]
            place = request.num_computed_tokens  # this step's are counted already
            is_last = wanted["stop_after"] == place - request.num_prompt_tokens + 1
            token = STOP if is_last else (int(name) * 7919 + place * 104729) % 5000 + 100
            sampled.append([] if request.is_prefill_chunk else [token])
        self.found = Future()
        self.found.set_result(ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled))
        return self.found

    def sample_tokens(self, grammar_output, non_block):
        return self.found


def make_core(scheduler, workload):
    """vLLM's `EngineCore` with as much as its loop needs."""
    from vllm.v1.engine.core import EngineCore

    core = object.__new__(EngineCore)
    core.scheduler, core.vllm_config = scheduler, scheduler.vllm_config
    core.model_executor = FakeModel(scheduler, workload)
    core.batch_queue_size = scheduler.vllm_config.max_concurrent_batches
    assert core.batch_queue_size == 2
    core.batch_queue, core.aborts_queue = deque(), queue.Queue()
    core.log_stats = core.is_pooling_model = core.is_mm_encoder_only = core.check_for_draft_tokens = False
    core._weight_version = None
    return core


def record(model_config, workload):
    """The workload with its turns: what was decided in each (if anything), which earlier step came back, who finished."""
    from vllm.v1.request import Request, RequestStatus

    model_config.max_model_len = workload["config"]["max_model_len"]
    scheduler, hasher = vllm_worker.make_scheduler(model_config, workload["config"])
    core = make_core(scheduler, workload)
    requests, turns, decided, turn = {}, [], [], {}
    decide, update = scheduler.schedule, scheduler.update_from_output

    def watched_schedule(*args):
        output = decide(*args)
        if output.num_scheduled_tokens or output.preempted_req_ids:
            seen = vllm_worker.snapshot(turn["step"], scheduler, output)
            names = [str(i) for i, _ in seen["scheduled"]]
            seen["computed"] = dict(zip(names, seen["computed"]))
            seen["blocks"] = dict(zip(names, seen["blocks"]))
            turn["decided"] = seen
        decided.append((turn["step"], output))
        return output

    def watched_update(output, model_output):
        found = update(output, model_output)
        if output.num_scheduled_tokens:
            turn["came_back"] = next(step for step, one in decided if one is output)
        return found

    scheduler.schedule, scheduler.update_from_output = watched_schedule, watched_update
    while len(turns) < 400 and (len(requests) < len(workload["requests"]) or scheduler.has_requests()):
        turn = dict(step=len(turns), decided=None, came_back=None)
        for r in workload["requests"]:
            if r["arrival"] == turn["step"]:
                params = vllm_worker.greedy(r["max_tokens"], stop_token_ids=[STOP])
                requests[r["id"]] = Request(
                    str(r["id"]), r["prompt"], params, None, arrival_time=turn["step"] + r["id"] * 1e-6,
                    priority=r["priority"], block_hasher=hasher,
                )  # fmt: skip
                scheduler.add_request(requests[r["id"]])
        alive = [i for i, request in requests.items() if not request.is_finished()]
        aborted = [
            r["id"] for r in workload["requests"] if r["abort_at"] == turn["step"] and r["id"] in alive
        ]
        for i in aborted:
            scheduler.finish_requests(str(i), RequestStatus.FINISHED_ABORTED)
        core.step_with_batch_queue()
        finished = [i for i in alive if requests[i].is_finished() and i not in aborted]
        turns.append(turn | dict(aborted=aborted, finished=finished))
    assert all(r.is_finished() for r in requests.values()), "a workload that vLLM cannot finish"
    return workload | dict(steps=turns)


def main():
    model_config = vllm_worker.start(dict(only_scheduler=True, model=sys.argv[1], skip_tokenizer_init=True))
    with gzip.open(HERE / "vllm_0_32_async.jsonl.gz", "wt", compresslevel=9) as file:
        for seed in range(WORKLOADS):
            file.write(json.dumps(record(model_config, make_workload(seed))) + "\n")


if __name__ == "__main__":
    main()
