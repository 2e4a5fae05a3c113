"""Records what the real vLLM 0.32 decides where all layers have a sliding window: `vllm_0_32_windows.jsonl.gz`.

    VLLM_PYTHON -m tests.phase4_scheduler.engine.record_windows MODEL_FOLDER        (any model; only its settings are read)

vLLM's own scheduler decides, and the loop of its own `EngineCore` says when; only the model is replaced. It runs in vLLM's own
environment, so it imports nothing of the course but the file that drives vLLM there. (vLLM: Apache 2.0; the recording: the
licence of this repository.)
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

HERE = Path(__file__).parent
STOP = 7
WORKLOADS = 60


def make_workload(seed):
    """Prompts that begin alike, texts far longer than the window, and a cache that is too small for all of them."""
    rng = random.Random(seed)
    size = rng.choice([2, 4, 4, 8, 16])
    window = rng.choice(
        [2, size - 1, size, size + 1, 3 * size, rng.randint(2, 10 * size), rng.randint(8, 60)]
    )
    budget = rng.choice([size, 16, 16, 32])
    held = -(-(max(window, 2) - 1 + budget) // size) + 2  # what one request needs at most, and a block more
    config = dict(
        block_size=size,
        sliding_window=max(window, 2),
        num_blocks=1 + held + rng.randint(0, 4),
        max_num_batched_tokens=budget,
        max_num_seqs=min(budget, rng.choice([4, 8])),
        max_model_len=300,
        long_prefill_token_threshold=rng.choice([0, 0, 7]),
        prefix_caching=rng.random() < 0.8,
        chunked_prefill=True,
        policy=rng.choice(["fcfs", "fcfs", "priority"]),
    )
    beginnings = [[rng.randint(10, 12) for _ in range(rng.choice([0, 5, 20, 50, 100]))] for _ in range(2)]
    requests = []
    for i in range(rng.randint(3, 8)):
        prompt = [*rng.choice(beginnings), *(rng.randint(10, 99) for _ in range(rng.randint(1, 40)))]
        requests.append(
            dict(
                id=i,
                arrival=rng.randint(0, 12),
                prompt=prompt,
                max_tokens=rng.randint(1, 40),
                priority=rng.randint(0, 2),
                stop_after=rng.choice([None, None, 5]),
                abort_at=rng.choice([None, None, None, rng.randint(3, 40)]),
            )
        )
    return dict(seed=seed, config=config, requests=requests)


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
    core.batch_queue, core.aborts_queue = deque(), queue.Queue()
    core.log_stats = core.is_pooling_model = core.is_mm_encoder_only = core.check_for_draft_tokens = False
    core._weight_version = None
    return core


def record(model_config, workload):
    """The workload with its steps: what was decided, and which requests ended.

    Where a step comes back later than it was decided, "decided" (None: nothing) and "came_back" (the step) stand apart.
    """
    from vllm.v1.request import Request, RequestStatus

    model_config.max_model_len = workload["config"]["max_model_len"]
    scheduler, hasher = vllm_worker.make_scheduler(model_config, workload["config"])
    core = make_core(scheduler, workload)
    at_once = core.batch_queue_size == 1
    requests, turns, decided, turn = {}, [], [], {}
    decide, update = scheduler.schedule, scheduler.update_from_output

    def watched_schedule(*args):
        output = decide(*args)
        if at_once or output.num_scheduled_tokens or output.preempted_req_ids:
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
        if not at_once:
            core.step_with_batch_queue()
        elif scheduler.has_requests():
            core.step()
        else:
            scheduler.schedule()
        finished = sorted(i for i in alive if requests[i].is_finished() and i not in aborted)
        turns.append((turn["decided"] if at_once else turn) | dict(aborted=aborted, finished=finished))
    assert all(r.is_finished() for r in requests.values()), "a workload that vLLM cannot finish"
    return workload | dict(steps=turns)


def write(path, workloads):
    model_config = vllm_worker.start(dict(only_scheduler=True, model=sys.argv[1], skip_tokenizer_init=True))
    with gzip.open(path, "wt", compresslevel=9) as file:
        for workload in workloads:
            file.write(json.dumps(record(model_config, workload)) + "\n")


if __name__ == "__main__":
    write(HERE / "vllm_0_32_windows.jsonl.gz", map(make_workload, range(WORKLOADS)))
