"""What deciding a step costs: our scheduler and block manager beside the real vLLM's, without any model.

    python phase5_real_gpu/benchmarks/scheduler_benchmark.py --vllm-python ENV/bin/python --recordings traces.jsonl.gz

Both decide the same steps (the tests hold that every decision is equal), so only the time differs. vLLM's
scheduler also serves features that ours does not have (encoders, speculative decoding, connectors), and builds
objects for its other processes. The comparison says what this course's rules cost, not who writes better code.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from transformers import GPT2Config

from labkit.machine import environment
from phase5_real_gpu.benchmarks.worker_process import Worker

WORKER = Path(__file__).with_name("scheduler_worker.py")


def many_running(count: int) -> dict[str, Any]:
    """`count` requests that write for 200 steps, after 50 steps in which their prompts are computed."""
    return dict(
        config=dict(
            block_size=16, num_blocks=64 * count + 1, max_num_batched_tokens=8192, max_num_seqs=count,
            max_model_len=1024, long_prefill_token_threshold=0, prefix_caching=True, policy="fcfs",
            chunked_prefill=True,
        ),
        requests=[
            dict(id=i, arrival=0, prompt=[(31 * i + j) % 5000 for j in range(100)], max_tokens=600, priority=0)
            for i in range(count)
        ],
        steps=250,
        warm=50,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm-python", metavar="PATH", help="python of an environment that holds vLLM")
    parser.add_argument(
        "--recordings", type=Path, metavar="FILE", help="recorded workloads (JSON lines, gzip)"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write all figures here")
    args = parser.parse_args()
    for path in (args.vllm_python, args.recordings):
        if path and not Path(path).is_file():
            parser.error(f"no such file: {path}")
    if args.rounds < 1:
        parser.error("--rounds must be 1 or more")
    if args.json and not args.json.parent.is_dir():
        parser.error(f"no folder {args.json.parent}: make it first")

    workloads = {f"{n} running": [many_running(n)] for n in (1, 16, 64, 256)}
    if args.recordings:
        with gzip.open(args.recordings, "rt") as file:
            recorded = [json.loads(line) for line in file]
        workloads[f"{len(recorded)} recordings"] = [
            dict(config=w["config"], requests=w["requests"], steps=len(w["steps"])) for w in recorded
        ]

    microseconds: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as checkpoint:
        GPT2Config(architectures=["GPT2LMHeadModel"]).save_pretrained(checkpoint)
        workers = [Worker("ours", sys.executable, WORKER, "ours")]
        if args.vllm_python:
            workers.append(Worker("vllm", args.vllm_python, WORKER, "vllm", checkpoint))
        for name, runs in workloads.items():
            microseconds[name] = {w.name: [] for w in workers}
            for number in range(args.rounds):
                tokens = set()
                for worker in workers[number % 2 :] + workers[: number % 2]:  # nobody always goes first
                    answers = [worker.ask(json.dumps(run)) for run in runs]
                    seconds, steps = (sum(a[key] for a in answers) for key in ("seconds", "steps"))
                    tokens.add(sum(a["tokens"] for a in answers))
                    microseconds[name][worker.name].append(1e6 * seconds / steps)
                if len(tokens) > 1:
                    raise SystemExit(f"{name}: the schedulers computed different numbers of tokens: {tokens}")
        for worker in workers:
            worker.stop()

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("requests")
    for column in [f"{w.name}, us a step" for w in workers] + (["vllm / ours"] if args.vllm_python else []):
        table.add_column(column, justify="right")
    for name, times in microseconds.items():
        medians = [statistics.median(values) for values in times.values()]
        row = [f"{m:,.0f}" for m in medians]
        if args.vllm_python:
            row.append(f"{medians[1] / medians[0]:.1f}x")
        table.add_row(name, *row)
    console = Console(width=100)
    console.print("Deciding a step and taking in its tokens, median of the rounds")
    console.print(table)
    if args.json:
        args.json.write_text(
            json.dumps(dict(environment=environment(), microseconds_per_step=microseconds), indent=1),
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
