"""Is the simulator right? Traffic in real time through an engine, and once more in virtual time.

    python phase5_real_gpu/benchmarks/simulator_benchmark.py                                     # our engine
    python phase5_real_gpu/benchmarks/simulator_benchmark.py --vllm-python ENV/bin/python        # the real vLLM
    python phase5_real_gpu/benchmarks/simulator_benchmark.py --speed                             # of the simulator itself

A cost model is fitted to steps of some workloads (mixed lengths and code, in waves of one request, of two, and so on).
Another workload (chat, at random times) comes at three loads: half of what the engine can do, nearly all of it, and more
than that. Both serve it, the engine and the simulator, and we compare what users feel. The steps for the fit are measured
before, between and after the loads, and all of it comes in several rounds: so a machine that slows down for a while slows
both sides.

The model has GPT-2's shape and random weights. Do nothing else on the machine meanwhile: its noise would be measured.
"""

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from labkit.lab import Lab, run_lab
from labkit.options import whole
from phase1_tokens_embeddings.weights import SHAPES
from phase4_scheduler.engine import LLMEngine, SchedulerConfig
from phase4_scheduler.simulator import ROUTERS, ReplicaConfig, find_cost, serve_fleet, simulate, summarise
from phase4_scheduler.simulator.cost_model import fit_cost
from phase4_scheduler.simulator.latency import RequestRecord
from phase4_scheduler.simulator.real_time import in_waves, measure_steps, serve
from phase4_scheduler.simulator.step_size import StepSize
from phase4_scheduler.simulator.traffic import PromptMaker, TrafficRequest, draw_traffic, fit_lengths
from phase5_real_gpu.benchmarks.serving_benchmark import write_random_model
from phase5_real_gpu.benchmarks.vllm_process import Worker

LOADS = (0.5, 0.9, 1.2)
FITTED_TO, OF_EACH = ("mixed", "code"), 24
CONTEXT, NUM_BLOCKS = 256, 2048
LIMITS = dict(max_num_seqs=16, max_num_batched_tokens=256)
CONFIG = SchedulerConfig(**LIMITS, max_model_len=CONTEXT)
Steps = tuple[list[StepSize], list[float]]  # and the seconds of each


class Server(NamedTuple):
    """An engine to put the simulator beside: serves traffic, and measures its own steps (with other prompts each time)."""

    name: str
    serve: Callable[[Sequence[TrafficRequest], PromptMaker], list[RequestRecord]]
    measure: Callable[[int], Steps]


def story(lab: Lab) -> None:
    if lab.args.speed:
        speed(lab)
    else:
        accuracy(lab)


def accuracy(lab: Lab) -> None:
    rounds = lab.args.rounds
    with tempfile.TemporaryDirectory() as checkpoint, ExitStack() as stack:
        write_random_model(SHAPES["gpt2"], checkpoint, lab.args.dtype)
        server = (start_vllm if lab.args.vllm_python else start_ours)(lab, checkpoint, stack)
        sizes, seconds = server.measure(0)
        at_once = draw(lab, 0, math.inf)
        full = simulate(at_once, CONFIG, NUM_BLOCKS, fit_cost(sizes, seconds))
        most = summarise(full.records).requests_per_second
        cases = [(i, load) for i in range(rounds) for load in LOADS]
        served = []
        for i, load in lab.progress(cases, "loads"):
            served.append(figures(server.serve(draw(lab, i, load * most), PromptMaker(8000, lab.seed + i))))
            for had, more in zip((sizes, seconds), server.measure(1000 * len(served)), strict=True):
                had.extend(more)
    cost = fit_cost(sizes, seconds)
    lab.say(
        f"{server.name}: fitted to {cost.steps:,} steps; on steps kept aside {cost.median_error:.1%} off in the median."
    )
    runs = (simulate(draw(lab, i, load * most), CONFIG, NUM_BLOCKS, cost) for i, load in cases)
    ours = [figures(run.records) for run in runs]
    measured, simulated = (np.reshape(f, (rounds, len(LOADS), -1)).mean(axis=0) for f in (served, ours))
    errors = 100 * (simulated / measured - 1)
    rows = [
        [load, what, f"{a:.4g}", f"{b:.4g}", f"{e:+.1f}%"]
        for load, *of_load in zip(LOADS, measured, simulated, errors)
        for what, a, b, e in zip(FIGURES, *of_load)
    ]
    lab.table(
        f"{server.name}, {lab.args.requests} requests (chat) at each load, means of {rounds} rounds",
        ["load", "", "measured, s", "simulated, s", "off"],
        rows,
    )
    lab.record(engine=server.name, prices=cost.prices)
    lab.record(percent_off={str(load): off.round(2).tolist() for load, off in zip(LOADS, errors)})


FIGURES = ("TTFT, mean", "TPOT, mean", "E2E, mean", "TTFT, p99", "TPOT, p99", "E2E, p99")


def figures(records: Sequence[RequestRecord]) -> np.ndarray:
    values = [np.array([getattr(r, name) for r in records]) for name in ("ttft", "tpot", "e2e")]
    return np.array([*(v.mean() for v in values), *(np.percentile(v, 99) for v in values)])


def draw(lab: Lab, number: int, rate: float) -> list[TrafficRequest]:
    """The traffic of a round: other requests in each."""
    return fit_lengths(draw_traffic("chat", lab.args.requests, rate, seed=lab.seed + 1 + number), CONTEXT)[0]


def start_ours(lab: Lab, checkpoint: str, _: ExitStack) -> Server:
    engine = LLMEngine.from_pretrained(
        checkpoint, dtype=lab.args.dtype, device="cpu", num_blocks=NUM_BLOCKS, max_model_len=CONTEXT, **LIMITS
    )
    waves = in_waves(FITTED_TO, OF_EACH, CONTEXT, lab.seed)

    def real(traffic: Sequence[TrafficRequest], prompts: PromptMaker) -> list[RequestRecord]:
        engine.core.block_manager.reset_prefix_cache()
        return list(serve(engine, traffic, prompts))

    real(waves[0], PromptMaker(8000, lab.seed))  # the first steps are slower than all others
    return Server("our engine", real, lambda seed: measure_steps(engine, waves, seed))


def start_vllm(lab: Lab, checkpoint: str, stack: ExitStack) -> Server:
    settings = dict(LIMITS, max_model_len=CONTEXT, skip_tokenizer_init=True, dtype=lab.args.dtype, seed=0)
    vllm = stack.enter_context(Worker(lab.args.vllm_python, model=checkpoint, in_process=True, **settings))
    waves = in_waves(FITTED_TO, OF_EACH, CONTEXT, lab.seed)

    def ask(traffic: Sequence[TrafficRequest], prompts: PromptMaker) -> dict:
        asked = [(r.arrival, prompts.prompt(r, i), r.output_tokens) for i, r in enumerate(traffic)]
        return vllm.ask("serve", requests=asked)

    def real(traffic: Sequence[TrafficRequest], prompts: PromptMaker) -> list[RequestRecord]:
        records = [RequestRecord.of(request) for request in traffic]
        for record, times in zip(records, ask(traffic, prompts)["token_times"], strict=True):
            record.token_times = times
        return records

    def measure(seed: int) -> Steps:
        sizes, seconds = [], []
        for i, wave in enumerate(waves):
            steps = ask(wave, PromptMaker(8000, seed + i))["steps"]
            sizes += [StepSize.of(parts) for _, parts in steps[:-1]]
            seconds += np.diff([begin for begin, _ in steps]).tolist()
        return sizes, seconds

    real(waves[0], PromptMaker(8000, lab.seed))
    return Server(f"vLLM {vllm.version}", real, measure)


def speed(lab: Lab) -> None:
    """Chat on L4s: requests that the simulator serves in a second of wall time."""
    cost = find_cost("l4:llama-3-8b")
    limits = SchedulerConfig(max_num_seqs=256, max_num_batched_tokens=2048, max_model_len=cost.max_context)
    config = ReplicaConfig(cost, limits, cost.num_blocks)
    rows = []
    for num_replicas, rate in ((1, 1.0), (1, 2.0), (1, 4.0), (16, 1.0), (16, 2.0), (16, 4.0)):
        traffic = draw_traffic("chat", lab.args.requests, rate * num_replicas, seed=lab.seed)
        began = time.perf_counter()
        serve_fleet(traffic, config, num_replicas, ROUTERS["least-loaded"]())
        rows.append([num_replicas, rate, round(len(traffic) / (time.perf_counter() - began))])
    lab.table(
        f"{lab.args.requests:,} requests (chat), Llama-3 8B on L4s: how fast they are simulated",
        ["replicas", "requests/s each", "simulated, requests/s"],
        rows,
    )
    lab.record(speed=rows)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vllm-python", metavar="PATH", help="python of an environment that holds vLLM")
    parser.add_argument("--speed", action="store_true", help="time the simulator instead")
    parser.add_argument(
        "--requests", type=whole(20, 100_000), default=100, metavar="N", help="at each load (100)"
    )
    parser.add_argument(
        "--rounds",
        type=whole(1, 20),
        default=3,
        metavar="N",
        help="of all loads, with other requests each (3)",
    )
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])


def main(argv: Sequence[str] | None = None) -> int:
    return run_lab(story, __doc__, ("seed",), add_arguments, argv)


if __name__ == "__main__":
    raise SystemExit(main())
