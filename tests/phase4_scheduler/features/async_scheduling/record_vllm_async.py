"""Records what the real vLLM 0.32 decides while a step runs: `vllm_0_32_async.jsonl.gz`, with its own `AsyncScheduler`.

VLLM_PYTHON -m tests.phase4_scheduler.features.async_scheduling.record_vllm_async MODEL_FOLDER     (as record_windows.py)
"""

import random
from pathlib import Path

from tests.phase4_scheduler.engine.record_windows import WORKLOADS, make_workload, write


def make_async_workload(seed):
    """As with a window, but with a cache that just holds the longest request, and some blocks more."""
    workload, rng = make_workload(seed), random.Random(seed)
    config, requests = workload["config"], workload["requests"]
    del config["sliding_window"]
    longest = max(len(r["prompt"]) + r["max_tokens"] for r in requests)
    config["max_model_len"] = rng.choice([300, longest - rng.randint(0, 3)])
    config["num_blocks"] = 1 + -(-longest // config["block_size"]) + rng.randint(0, 6)
    config["async_scheduling"] = True
    workload["requests"] = [r for r in requests if len(r["prompt"]) < config["max_model_len"]]
    return workload


if __name__ == "__main__":
    path = Path(__file__).parent / "vllm_0_32_async.jsonl.gz"
    write(path, map(make_async_workload, range(WORKLOADS)))
