"""A race in 16, 8 and 4 bits: the course's engine, llama.cpp and OpenVINO, on this machine's CPU.

Nobody who serves one user on a laptop computes in 16 bits. A step reads every weight once, so half the bits should be
half the time, and a quarter a quarter. How much of that is left in the end, with one user and with 64?

The model has random weights, for speed does not depend on them: GPT-2 124M's shape, or TinyLlama 1.1B's with
`--shape tinyllama-1.1b`. All engines read the same GGUF files, Q8_0 and Q4_0 (16 bits: ours in bfloat16, the others in F16);
besides, ours quantises a checkpoint itself, as int8 with one scale a row and as int4 with zero points. All run in turn,
round after round. Prompts are token ids and answers are greedy.

llama.cpp comes with the package `xllamacpp`, whose wheel is built for AVX2; OpenVINO, which reads no GPT-2, with
`openvino-genai`. Each needs an environment of its own:

    python -m venv ENV && ENV/bin/pip install xllamacpp

and then --llamacpp-python ENV/bin/python, or --openvino-python. Without them, only ours runs.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from labkit.lab import Lab, run_lab
from labkit.models import find_model
from labkit.options import whole
from phase1_tokens_embeddings.weights import SHAPES
from phase1_tokens_embeddings.weights.gguf_writer import write_gguf
from phase4_scheduler.engine import LLMEngine
from phase5_real_gpu.benchmarks.serving_benchmark import MAX_NUM_SEQS, WORKLOADS, race, write_random_model
from phase5_real_gpu.benchmarks.vllm_process import Worker
from phase5_real_gpu.measuring.engine_cases import Workload
from phase5_real_gpu.measuring.engine_runs import serve
from phase5_real_gpu.measuring.measurements import Spread

OURS = ("bfloat16", "int8", "q8_0", "int4", "q4_0")
THEIRS = {"bfloat16": "F16", "int8": "Q8_0", "q8_0": "Q8_0", "int4": "Q4_0", "q4_0": "Q4_0"}
NUM_BLOCKS = 3600  # for each engine: enough for 64 users of the longest workload
GGUF_WORKER = Path(__file__).with_name("gguf_worker.py")
PEERS = {"llama.cpp": "xllamacpp", "OpenVINO": "openvino_genai"}

Timed = Callable[[Workload], float]


def story(lab: Lab) -> None:
    args = lab.args
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        engines = start_engines(args, Path(folder), stack)
        seconds = {
            name: race(engines, args.rounds, WORKLOADS[name]())
            for name in lab.progress(args.workloads, "workloads")
        }

    tokens = {name: sum(osl for _, osl in WORKLOADS[name]()) for name in args.workloads}
    names = list(engines)
    lab.table(
        f"{args.shape}, {torch.get_num_threads()} CPU threads: output tokens a second, medians of {args.rounds}",
        ["workload", *names],
        [
            [workload, *(round(tokens[workload] / Spread.of(times[name]).median) for name in names)]
            for workload, times in seconds.items()
        ],
    )
    found = ratios(seconds)
    lab.table(
        "How many times as fast (lowest to highest of the rounds)",
        ["workload", *next(iter(found.values()))],
        [
            [workload, *(Spread.of(values).show("x") for values in pairs.values())]
            for workload, pairs in found.items()
        ],
    )
    lab.record(seconds=seconds, output_tokens=tokens, ratios=found)


def start_engines(args: argparse.Namespace, folder: Path, stack: ExitStack) -> dict[str, Timed]:
    """By name, what serves a workload with an empty prefix cache and says how many seconds that took."""
    checkpoint = folder / "checkpoint"
    write_random_model(SHAPES[args.shape], str(checkpoint), "bfloat16")
    # GGUF needs a tokenizer; ids are all that is used.
    shutil.copy(find_model("tales") / "tokenizer.json", checkpoint)
    files: dict[str, str] = {}
    for kind in dict.fromkeys(THEIRS[name] for name in args.formats):
        files[kind] = str(folder / f"{kind}.gguf")
        write_gguf(checkpoint, files[kind], kind)

    engines: dict[str, Timed] = {}
    for name in args.formats:
        engines[f"ours {name}"] = start_ours(name, str(checkpoint), files)
    settings = dict(max_model_len=1024, max_num_seqs=MAX_NUM_SEQS, threads=torch.get_num_threads())
    for peer, python in {"llama.cpp": args.llamacpp_python, "OpenVINO": args.openvino_python}.items():
        for kind, file in files.items() if python else ():
            package = PEERS[peer]
            worker = Worker(python, GGUF_WORKER, package, engine=package, model=file, **settings)
            engines[f"{peer} {kind}"] = stack.enter_context(worker).time
    return engines


def start_ours(name: str, checkpoint: str, files: dict[str, str]) -> Timed:
    settings = dict(max_num_seqs=MAX_NUM_SEQS, num_blocks=NUM_BLOCKS)
    if name in ("q8_0", "q4_0"):
        engine = LLMEngine.from_pretrained(files[THEIRS[name]], "bfloat16", "cpu", **settings)
    else:
        quantization = None if name == "bfloat16" else name
        engine = LLMEngine.from_pretrained(
            checkpoint, "bfloat16", "cpu", quantization=quantization, **settings
        )

    def time_ours(workload: Workload) -> float:
        engine.core.block_manager.reset_prefix_cache()
        return serve(engine, workload)[0]

    return time_ours


def ratios(seconds: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, list[float]]]:
    """Round by round: ours against the others in the same format, and few bits against 16 of our own."""
    found: dict[str, dict[str, list[float]]] = {}
    for workload, times in seconds.items():
        pairs = [(f"ours {name}", f"{peer} {THEIRS[name]}") for peer in PEERS for name in OURS]
        pairs += [(f"ours {name}", "ours bfloat16") for name in OURS[1:]]
        found[workload] = {
            f"{fast} / {slow}": [s / f for f, s in zip(times[fast], times[slow], strict=True)]
            for fast, slow in pairs
            if fast in times and slow in times
        }
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--llamacpp-python", metavar="PATH", help="python of an environment with xllamacpp")
    parser.add_argument(
        "--openvino-python", metavar="PATH", help="python of an environment with openvino-genai"
    )
    parser.add_argument("--shape", default="gpt2", choices=["gpt2", "tinyllama-1.1b"])
    parser.add_argument("--rounds", type=whole(1, 1000), default=5)
    parser.add_argument("--formats", nargs="+", default=list(OURS), choices=OURS)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS)[:4], choices=list(WORKLOADS))


def main(argv: Sequence[str] | None = None) -> int:
    return run_lab(story, __doc__, ("seed",), add_arguments, argv)


if __name__ == "__main__":
    raise SystemExit(main())
