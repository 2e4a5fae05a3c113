"""Longest cached prefix first (SGLang's order) on a recorded trace: hit rate and TTFT beside first come, first served.

    python -m exercises.capstone.prefix_order mooncake_conversation.jsonl.gz
    PYTHONPATH=. VLLM_PYTHON -m exercises.capstone.prefix_order mooncake_conversation.jsonl.gz --vllm MODEL_FOLDER

The first form decides with the course's scheduler, the second with vLLM's own, in vLLM's environment: their figures are equal. No
model runs, so a time is a number of steps. The trace (Mooncake, Apache 2.0) names equal pieces of 512 prompt tokens by equal
`hash_ids`; here a piece is one block of 16 tokens, and an answer is 32 times shorter as well.
"""

import argparse
import gzip
import json
import os
from pathlib import Path
from typing import Any

from exercises.capstone import policies
from exercises.capstone.scoreboard import BLOCK, Line, Server, Step, in_course, serve, token

SCALE = 32
LIMITS = dict(max_num_seqs=16, max_num_batched_tokens=256, max_model_len=8192)
POLICIES = ("Fcfs", "LongestPrefix")


def read_trace(path: Path, count: int, seconds_per_step: float) -> list[Line]:
    """The first `count` requests. Their arrivals are steps."""
    with gzip.open(path, "rt") as file:
        rows = [json.loads(line) for line, _ in zip(file, range(count))]
    return [
        Line(
            int((row["timestamp"] - rows[0]["timestamp"]) / 1000 / seconds_per_step),
            [100 + piece for piece in row["hash_ids"] for _ in range(BLOCK)][
                : max(1, row["input_length"] // SCALE)
            ],
            max(1, row["output_length"] // SCALE),
        )
        for row in rows
    ]


def in_vllm(num_blocks: int, policy: str, model: str) -> Server:
    """vLLM's scheduler with a policy of policies.py."""
    os.environ["LAB_POLICY"] = f"{Path(__file__).with_name('policies.py')}:{policy}"
    import vllm.v1.core.sched.scheduler as its_module
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    from exercises.capstone.vllm_policy import PolicyScheduler
    from phase5_real_gpu.benchmarks import vllm_worker

    its_module.Scheduler = PolicyScheduler  # what the worker makes
    config = vllm_worker.start(dict(only_scheduler=True, model=model, skip_tokenizer_init=True))
    config.max_model_len = LIMITS["max_model_len"]
    sizes = dict(block_size=BLOCK, num_blocks=num_blocks, long_prefill_token_threshold=0, policy="fcfs")
    scheduler, hasher = vllm_worker.make_scheduler(
        config, LIMITS | sizes | dict(chunked_prefill=True, prefix_caching=True)
    )
    requests: dict[str, Any] = {}

    def add(number: int, line: Line) -> None:
        params = vllm_worker.greedy(line.answer_tokens)
        request = Request(str(number), line.prompt, params, None, block_hasher=hasher)
        requests[str(number)] = request
        scheduler.add_request(request)

    def step() -> Step:
        if not scheduler.has_requests():
            return []
        output = scheduler.schedule()
        computed, names = vllm_worker.computed_before(output), list(output.num_scheduled_tokens)
        found = [(int(name), computed[name], output.num_scheduled_tokens[name]) for name in names]
        ready = [requests[n].num_computed_tokens >= requests[n].num_tokens for n in names]
        sampled = [[token(requests[n])] if done else [] for n, done in zip(names, ready)]
        places = {name: i for i, name in enumerate(names)}
        scheduler.update_from_output(output, ModelRunnerOutput(names, places, sampled))
        return found

    return add, step


def hit_rate_and_ttft(trace: list[Line], server: Server) -> tuple[float, list[int]]:
    """Hit rate, and of each request the steps to its first token: here a step is the unit of time."""
    served = serve(trace, *server, seconds=lambda step: 1)
    asked = sum(len(line.prompt) for line in trace)
    ttft = [int(times[0] - line.arrival) for line, (times, _) in zip(trace, served, strict=True)]
    return sum(cached for _, cached in served) / asked, ttft


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument(
        "--vllm", metavar="MODEL_FOLDER", help="decide with vLLM, in whose environment this runs"
    )
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--blocks", type=int, default=3000)
    parser.add_argument("--seconds-per-step", type=float, default=0.55)
    a = parser.parse_args()
    trace = read_trace(a.trace, a.requests, a.seconds_per_step)
    waits = []
    for policy in POLICIES:
        own = getattr(policies, policy)()
        server = in_vllm(a.blocks, policy, a.vllm) if a.vllm else in_course(a.blocks, own, LIMITS)
        rate, ttft = hit_rate_and_ttft(trace, server)
        waits.append(ttft)
        p50, p99 = (sorted(ttft)[int(share * len(ttft))] for share in (0.5, 0.99))
        print(f"{policy}: hit rate {rate:.1%}; TTFT in steps: p50 {p50}, p99 {p99}, longest {max(ttft)}")
    longer = [after - before for before, after in zip(*waits) if after > before]
    print(
        f"{len(longer)} of {len(trace)} requests wait longer for it, the unluckiest {max(longer, default=0)} steps"
    )


if __name__ == "__main__":
    main()
