"""Records what the real vLLM 0.32 decides where all layers have a sliding window: `vllm_0_32_windows.jsonl.gz`.

    VLLM_PYTHON -m tests.phase4_scheduler.engine.record_windows MODEL_FOLDER        (any model; only its settings are read)

It runs in vLLM's own environment, so it imports nothing of the course but the file that drives vLLM there. (vLLM: Apache
2.0; the recording: the licence of this repository.)
"""

import gzip
import json
import random
import sys
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


def record(model_config, workload):
    """The workload with its steps."""
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus

    scheduler, hasher = vllm_worker.make_scheduler(model_config, workload["config"])
    assert scheduler.vllm_config.max_concurrent_batches == 1
    requests, steps, step = {}, [], 0
    while step < 400 and (len(requests) < len(workload["requests"]) or scheduler.has_requests()):
        for r in workload["requests"]:
            if r["arrival"] == step:
                params = vllm_worker.greedy(r["max_tokens"], stop_token_ids=[STOP])
                requests[r["id"]] = Request(
                    str(r["id"]), r["prompt"], params, None, arrival_time=step + r["id"] * 1e-6,
                    priority=r["priority"], block_hasher=hasher,
                )  # fmt: skip
                scheduler.add_request(requests[r["id"]])
        aborted = [
            r["id"]
            for r in workload["requests"]
            if r["abort_at"] == step and r["id"] in requests and not requests[r["id"]].is_finished()
        ]
        for i in aborted:
            scheduler.finish_requests(str(i), RequestStatus.FINISHED_ABORTED)
        output = scheduler.schedule()
        seen = vllm_worker.snapshot(step, scheduler, output)
        names = [str(i) for i, _ in seen["scheduled"]]
        sampled = []
        for name in names:
            request, wanted = requests[name_of := int(name)], workload["requests"][int(name)]
            if request.num_computed_tokens < request.num_tokens:
                sampled.append([])
            elif wanted["stop_after"] == request.num_output_tokens + 1:
                sampled.append([STOP])
            else:
                sampled.append([(name_of * 7919 + request.num_tokens * 104729) % 5000 + 100])
        scheduler.update_from_output(
            output, ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled)
        )
        steps.append(
            seen
            | dict(
                aborted=aborted,
                computed=dict(zip(names, seen["computed"])),
                blocks=dict(zip(names, seen["blocks"])),
                finished=sorted(int(n) for n in names if requests[int(n)].is_finished()),
            )
        )
        step += 1
    assert all(r.is_finished() for r in requests.values()), "a workload that vLLM cannot finish"
    return workload | dict(steps=steps)


def main():
    model_config = vllm_worker.start(dict(only_scheduler=True, model=sys.argv[1], skip_tokenizer_init=True))
    with gzip.open(HERE / "vllm_0_32_windows.jsonl.gz", "wt", compresslevel=9) as file:
        for seed in range(WORKLOADS):
            file.write(json.dumps(record(model_config, make_workload(seed))) + "\n")


if __name__ == "__main__":
    main()
