"""What HTTP costs: the engine alone beside the same engine behind its server, and the real vLLM both ways.

    python phase5_real_gpu/benchmarks/http_benchmark.py --vllm-python ENV/bin/python

Alone means `LLMEngine.generate` in this process: requests in, text out. Behind HTTP every user has a connection, and
each token is a chunk of a stream. The users run in this process too, on the same cores: what they cost counts.

All run in turn, several rounds, each round with new prompts. Quote the ratios, not the speeds. For vLLM: see
serving_benchmark.py.
"""

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from labkit.lab import Lab, run_lab
from labkit.models import find_model
from labkit.options import whole
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase4_scheduler.engine import LLMEngine
from phase4_scheduler.server.client import running_server, send_all
from phase5_real_gpu.benchmarks.vllm_process import Worker, find_vllm, vllm_server
from phase5_real_gpu.measuring.engine_cases import Workload, equal_workload
from phase5_real_gpu.measuring.engine_peers import quiet_transformers
from phase5_real_gpu.measuring.engine_runs import serve
from phase5_real_gpu.measuring.measurements import Spread, in_turn

MAX_NUM_SEQS = 64
ISL = 32
USERS = {"gpt2": {16: 64, 64: 64}, "tales": {16: 256, 64: 128}}
"""How many users at a time, and how many tokens each of them asks for."""
ONE_USER = 20  # requests one after the other, a round, whose TTFT counts
VOCAB = 8000  # ids that both models have

Engine = Callable[[Workload], float]
"""Serves a workload; returns the seconds it took."""


def story(lab: Lab) -> None:
    args = lab.args
    find_vllm(args.vllm_python)
    quiet_transformers()
    seconds, ttft = {}, {}
    for model in lab.progress(args.models, "models"):
        with tempfile.TemporaryDirectory() as checkpoint, ExitStack() as stack:
            if model == "gpt2":
                make_gpt2(checkpoint)
            folder = checkpoint if model == "gpt2" else str(find_model(model))
            engines = start_engines(args, folder, stack)
            for users, osl in USERS[model].items():
                seconds[f"{model}, {users} users"] = run(engines, args.rounds, users, osl)
            ttft[model] = run_one_user(engines, args.rounds)
    show(lab, seconds, ttft)


def make_gpt2(folder: str) -> None:
    """A checkpoint of GPT-2's shape with random weights (speed does not depend on them), and GPT-2's vocabulary."""
    GPT2LMHeadModel(GPT2Config()).save_pretrained(folder)
    BPETokenizer.from_tiktoken("gpt2").save(f"{folder}/tokenizer.json")


def start_engines(args: argparse.Namespace, folder: str, stack: ExitStack) -> dict[str, Engine]:
    """Ours and vLLM, each alone and behind HTTP."""
    engine = LLMEngine.from_pretrained(folder, dtype=args.dtype, device="cpu", max_num_seqs=MAX_NUM_SEQS)
    common = ["--dtype", args.dtype, "--max-num-seqs", str(MAX_NUM_SEQS)]
    server = stack.enter_context(running_server(folder, "--served-model-name", "model", *common))
    engines = {"ours": lambda workload: serve(engine, workload)[0], "ours, HTTP": over_http(server.address)}
    if args.vllm_python:
        settings = dict(model=folder, dtype=args.dtype, max_model_len=1024, max_num_seqs=MAX_NUM_SEQS)
        worker = stack.enter_context(Worker(args.vllm_python, **settings))
        address = stack.enter_context(
            vllm_server(args.vllm_python, folder, "--max-model-len", "1024", *common)
        )
        engines["vllm"] = lambda workload: worker.time(workload, detokenize=True)
        engines["vllm, HTTP"] = over_http(address)
    return engines


def over_http(address: str) -> Engine:
    """Users that all send at once, each over a connection of its own."""

    def send(workload: Workload) -> float:
        bodies = [
            {"model": "model", "prompt": prompt, "max_tokens": osl, "temperature": 0, "ignore_eos": True}
            for prompt, osl in workload
        ]
        answers = asyncio.run(send_all(address, bodies))
        for (_, osl), answer in zip(workload, answers, strict=True):
            if answer.error or answer.usage["completion_tokens"] != osl:
                raise RuntimeError(answer.error or f"{answer.usage} where {osl} tokens were asked for")
        return max(answer.ended for answer in answers) - min(answer.sent for answer in answers)

    return send


def run(engines: dict[str, Engine], rounds: int, users: int, osl: int) -> dict[str, list[float]]:
    """Seconds of each round, by engine. Prompts are new each time, so that none is found in a prefix cache."""
    seconds = {name: [] for name in engines}
    for seed, name in enumerate(in_turn(engines, rounds), 1):
        engines[name](equal_workload(4, ISL, 2, VOCAB, -seed))
        seconds[name].append(engines[name](equal_workload(users, ISL, osl, VOCAB, seed)))
    return seconds


def run_one_user(engines: dict[str, Engine], rounds: int) -> dict[str, list[float]]:
    """Seconds from one user's request to its first token, which is all of its answer. The median of each round."""
    medians = {name: [] for name in engines}
    for number, name in enumerate(in_turn(engines, rounds), 1):
        prompts = equal_workload(ONE_USER, ISL, 1, VOCAB, seed=10**6 + number)
        medians[name].append(statistics.median(engines[name]([prompt]) for prompt in prompts))
    return medians


def show(
    lab: Lab, seconds: dict[str, dict[str, list[float]]], ttft: dict[str, dict[str, list[float]]]
) -> None:
    engines = list(next(iter(seconds.values())))
    ratios = {what: rates(times) for what, times in seconds.items()}
    tokens = {f"{m}, {users} users": users * osl for m in ttft for users, osl in USERS[m].items()}
    names = list(next(iter(ratios.values())))
    lab.table(
        f"{lab.args.dtype}, {torch.get_num_threads()} CPU threads: output tokens a second",
        ["load", *engines, *(f"{name} (lowest to highest)" for name in names)],
        [
            [what, *(round(tokens[what] / Spread.of(times[name]).median) for name in engines),
             *(Spread.of(ratios[what][name]).show("x") for name in names)]
            for what, times in seconds.items()
        ],
    )  # fmt: skip
    added = {
        model: {alone: [1e3 * (b - a) for a, b in zip(medians[alone], medians[f"{alone}, HTTP"], strict=True)]
                for alone in engines if "HTTP" not in alone}
        for model, medians in ttft.items()
    }  # fmt: skip
    lab.table(
        "One user: time from the request to its one token",
        ["model", *engines, *(f"HTTP adds, {alone}" for alone in engines if "HTTP" not in alone)],
        [
            [model, *(f"{1e3 * statistics.median(medians[name]):.1f} ms" for name in engines),
             *(Spread.of(values).show(" ms") for values in added[model].values())]
            for model, medians in ttft.items()
        ],
    )  # fmt: skip
    lab.record(seconds=seconds, output_tokens=tokens, ratios=ratios, ttft_seconds=ttft, added_ttft_ms=added)


def rates(seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    """What share of its speed each engine keeps behind HTTP, and how many times as fast as vLLM ours is there."""
    pairs = {"ours, HTTP / alone": ("ours", "ours, HTTP")}
    if "vllm" in seconds:
        pairs["vllm, HTTP / alone"] = ("vllm", "vllm, HTTP")
        pairs["ours / vllm, HTTP"] = ("vllm, HTTP", "ours, HTTP")
    return {
        name: [a / b for a, b in zip(seconds[first], seconds[second], strict=True)]
        for name, (first, second) in pairs.items()
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vllm-python", metavar="PATH", help="python of an environment that holds vLLM")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=whole(1, 1000), default=5)
    parser.add_argument("--models", nargs="+", default=list(USERS), choices=list(USERS))


def main(argv: Sequence[str] | None = None) -> int:
    return run_lab(story, __doc__, (), add_arguments, argv)


if __name__ == "__main__":
    raise SystemExit(main())
