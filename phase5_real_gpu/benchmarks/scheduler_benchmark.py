"""What deciding a step costs: our scheduler and block manager beside the real vLLM's, without any model.

    python phase5_real_gpu/benchmarks/scheduler_benchmark.py --vllm-python ENV/bin/python --recordings traces.jsonl.gz

Both get the same requests in the same steps, and a "model" that answers a fixed token. They decide the same (the
tests hold that every decision is equal), so only the time differs: `schedule` and `update` are timed, adding a
request is not. vLLM's scheduler also serves features that ours does not have (encoders, speculative decoding,
connectors), and builds objects for its other processes. The comparison says what this course's rules cost, not who
writes better code.
"""

import argparse
import gzip
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from transformers import GPT2Config

from labkit.errors import LabError
from labkit.lab import Lab, run_lab
from labkit.options import whole
from phase2_attention_kvcache.model import SamplingParams
from phase3_paged_attention.paging import BlockManager
from phase4_scheduler.engine import Request, Scheduler, SchedulerConfig
from phase4_scheduler.engine.request import RequestLimits
from phase5_real_gpu.benchmarks.vllm_process import Worker, find_vllm
from phase5_real_gpu.measuring.measurements import Spread, in_turn

Workload = dict[str, Any]
"""{"config": {...}, "requests": [...], "steps": most steps, "warm": steps that do not count, "stop_token_id"}."""
STOP_TOKEN_ID = 7


def many_running(count: int) -> Workload:
    """`count` requests that write for 200 steps, after 50 steps in which their prompts are computed."""
    config = dict(
        block_size=16, num_blocks=64 * count + 1, max_num_batched_tokens=8192, max_num_seqs=count,
        max_model_len=1024, long_prefill_token_threshold=0, prefix_caching=True, policy="fcfs", chunked_prefill=True,
    )  # fmt: skip
    requests = [
        dict(id=i, arrival=0, prompt=[(31 * i + j) % 5000 for j in range(100)], max_tokens=600, priority=0)
        for i in range(count)
    ]
    return dict(config=config, requests=requests, steps=250, warm=50, stop_token_id=STOP_TOKEN_ID)


class TakesAnything(Scheduler):
    """Also a request that can never finish in this cache, as vLLM does."""

    limits = property(lambda self: RequestLimits(sys.maxsize))


def recorded(file: Path) -> list[Workload]:
    """The workloads of a file of JSON lines, compressed."""
    with gzip.open(file, "rt") as lines:
        found = [json.loads(line) for line in lines]
    more = dict(warm=0, stop_token_id=STOP_TOKEN_ID)
    return [dict(config=w["config"], requests=w["requests"], steps=len(w["steps"])) | more for w in found]


def decide(workload: Workload) -> dict[str, Any]:
    """Our scheduler on a workload: seconds, steps that counted, tokens computed. (vLLM's: vllm_worker.py.)"""
    c = workload["config"]
    same = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "chunked_prefill",
            "long_prefill_token_threshold", "policy")  # fmt: skip
    scheduler = TakesAnything(
        SchedulerConfig(**{name: c[name] for name in same}),
        BlockManager(c["num_blocks"], c["block_size"], c["prefix_caching"]),
    )
    requests: dict[int, Request] = {}
    seconds, steps, tokens_computed = 0.0, 0, 0
    for step in range(workload["steps"]):
        for r in workload["requests"]:
            if r["arrival"] == step:
                params = SamplingParams(
                    temperature=0, max_tokens=r["max_tokens"], stop_token_ids=[STOP_TOKEN_ID], ignore_eos=True
                )
                request = Request(str(r["id"]), r["prompt"], params, step + r["id"] * 1e-6, r["priority"])
                requests[r["id"]] = request
                scheduler.add(request)
            elif r.get("abort_at") == step and r["id"] in requests:
                scheduler.finish(requests[r["id"]], "abort")
        began = time.perf_counter()
        output = scheduler.schedule()
        spent = time.perf_counter() - began
        tokens: list[list[int]] = []
        for s in output.scheduled:
            i, request = int(s.request.request_id), s.request
            stops = workload["requests"][i].get("stop_after") == len(request.output_token_ids) + 1
            token = STOP_TOKEN_ID if stops else (i * 7919 + len(request.token_ids) * 104729) % 5000 + 100
            tokens.append([token] if s.samples else [])
            tokens_computed += s.num_tokens
        began = time.perf_counter()
        scheduler.update(output, tokens)
        if step >= workload["warm"]:
            seconds += spent + time.perf_counter() - began
            steps += 1
    return {"seconds": seconds, "steps": steps, "tokens": tokens_computed}


def story(lab: Lab) -> None:
    args = lab.args
    workloads = {f"{n} running": [many_running(n)] for n in (1, 16, 64, 256)}
    if args.recordings:
        runs = recorded(args.recordings)
        workloads[f"{len(runs)} recordings"] = runs
    microseconds: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as checkpoint, ExitStack() as stack:
        engines: dict[str, Callable[[Workload], dict[str, Any]]] = {"ours": decide}
        if find_vllm(args.vllm_python) and args.vllm_python:
            GPT2Config(architectures=["GPT2LMHeadModel"]).save_pretrained(checkpoint)  # none is run
            settings = dict(skip_tokenizer_init=True, dtype="float32", max_model_len=1024)
            worker = Worker(args.vllm_python, only_scheduler=True, model=checkpoint, **settings)
            stack.enter_context(worker)
            engines["vllm"] = lambda workload: worker.ask("decide", workload=workload)
        for name, runs in lab.progress(workloads.items(), "workloads"):
            microseconds[name] = {engine: [] for engine in engines}
            tokens = set()
            for engine in in_turn(engines, args.rounds):
                answers = [engines[engine](run) for run in runs]
                seconds, steps, computed = (
                    sum(a[k] for a in answers) for k in ("seconds", "steps", "tokens")
                )
                microseconds[name][engine].append(1e6 * seconds / steps)
                tokens.add(computed)
            if len(tokens) > 1:
                raise LabError(
                    f"{name}: the schedulers computed different numbers of tokens: {sorted(tokens)}"
                )

    rows = []
    for name, times in microseconds.items():
        medians = [Spread.of(values).median for values in times.values()]
        rows.append([name, *map(round, medians), *(f"{m / medians[0]:.1f}x" for m in medians[1:])])
    lab.table(
        "Deciding a step and taking in its tokens, median of the rounds",
        ["requests", *(f"{engine}, us a step" for engine in engines), *(["vllm / ours"] if len(engines) > 1 else [])],
        rows,
    )  # fmt: skip
    lab.record(microseconds_per_step=microseconds)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vllm-python", metavar="PATH", help="python of an environment that holds vLLM")
    parser.add_argument(
        "--recordings", type=Path, metavar="FILE", help="recorded workloads (JSON lines, gzip)"
    )
    parser.add_argument("--rounds", type=whole(1, 1000), default=5)


def main(argv: Sequence[str] | None = None) -> int:
    return run_lab(story, __doc__, (), add_arguments, argv)


if __name__ == "__main__":
    raise SystemExit(main())
