"""Latency under load: traffic in, TTFT and ITL out, and the load at which a server saturates.

A server is fast or slow only for some traffic. A summary (a long prompt, a short answer) is another request than a program.
Traffic is drawn from four patterns, or read from a trace, and served by the scheduler and the block manager of this course.

It runs in virtual time: only the model is replaced, by a cost model. Ten thousand requests take seconds.

The script shows lengths of drawn and of recorded requests; the simulator beside recordings of real GPUs; TTFT, ITL and
goodput; the saturation point and its cause; one long prompt with and without chunked prefill.

Costs (--cost): "CARD:MODEL" computes the clock from a data sheet (l4:llama-3-8b), "rtx4090-table" and
"rtxpro6000-table" add up vLLM's kernels as they were timed on these cards. Sources: see the modules.
"""

import argparse
import math

from labkit.errors import LabError
from labkit.lab import Lab, run_lab
from labkit.options import between, whole
from phase4_scheduler.simulator.parallel_cost import find_cost
from phase4_scheduler.simulator.traffic import PATTERN_NAMES
from phase4_scheduler.story import recorded_story
from phase4_scheduler.story import simulator_chapters as chapters
from phase4_scheduler.story import simulator_load as under_load


def story(lab: Lab) -> None:
    a = lab.args
    if a.rate == 0:
        raise LabError("--rate is 0: no request would ever come")
    cost = find_cost(a.cost)  # a bad name is told before anything runs
    trace = chapters.the_trace(lab) if a.trace else None
    chapters.three_patterns(lab)
    recorded_story.the_truth(lab)
    server = chapters.make_server(lab, cost)
    most = chapters.per_pattern(lab, server)
    under_load.virtual_run(lab, server, trace, most)
    under_load.load_sweep(lab, server, most)
    under_load.long_prompt(lab, server)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, kind, metavar, default, text in (
        ("--rate", between(0, math.inf), "R", None, "requests per second; inf: at once (70%% of the most)"),
        ("--requests", whole(1, 10**6), "N", None, "how many (2,000; of a trace all)"),
        ("--burstiness", between(0.001, 1000), "B", 1.0, "1: Poisson; below 1 in bursts; above 1 evenly (1)"),
        ("--trace", str, "FILE", None, "serve these requests instead: Azure CSV or Mooncake JSONL"),
        ("--cost", str, "C", "l4:llama-3-8b", "CARD:MODEL or CARD-table (l4:llama-3-8b)"),
        ("--ttft-slo", between(0.001, 10**6), "S", 1.0, "limit for the first token, seconds (1)"),
        ("--tpot-slo", between(0.001, 10**6), "S", 0.1, "limit for the mean gap of an answer, seconds (0.1)"),
        ("--max-num-seqs", whole(1, 10**5), "N", 256, "most requests that run at a time (256)"),
        ("--num-blocks", whole(2, 10**6), "N", None, "KV blocks of 16 tokens (what fits)"),
    ):
        parser.add_argument(name, type=kind, metavar=metavar, default=default, help=text)
    add = parser.add_argument
    add("--pattern", default="mixed", choices=PATTERN_NAMES, help="which traffic comes (mixed)")
    policy = "priority: chat before code before summaries (fcfs)"
    add("--policy", default="fcfs", choices=["fcfs", "priority"], help=policy)


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("seed", "quick"), add_arguments=add_arguments, argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
