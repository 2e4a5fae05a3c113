"""What the user feels: traffic in, latencies out, and where a server begins to hurt.

A server is fast or slow only for some traffic. Somebody who pastes a report and wants ten lines (a long
prompt, a short answer) is another guest than somebody who asks for a program. Here traffic is drawn from
four patterns, or read from a trace, and served by the scheduler and the block manager of this course.

By default in virtual time: only the model is replaced, by a clock. Ten thousand requests take seconds.
With --real the engine itself serves, and you wait as long as its users do.

You will see: three kinds of guests in one histogram; a clock checked against the engine; TTFT, ITL and
goodput; the load at which waiting explodes, and why; one long prompt that stops everybody, and the cure.

Costs (--cost): "CARD:MODEL" computes the clock from a data sheet (l4:llama-3-8b), "measured" fits it to the
engine on this machine, a JSON file (see --save-cost) is a fit made before. Sources: see the modules.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

from labkit.errors import LabError
from labkit.lab import Lab, run_lab
from phase4_scheduler.simulator.cost_model import find_cost
from phase4_scheduler.simulator.traffic import PATTERN_NAMES
from phase4_scheduler.story.simulator_chapters import (
    Engines,
    guests,
    make_server,
    per_pattern,
    the_clock,
    the_trace,
)
from phase4_scheduler.story.simulator_load import load_sweep, long_prompt, real_run, virtual_run


def story(lab: Lab) -> None:
    a = lab.args
    check_options(a)
    engines = Engines(lab)
    cost = None if a.cost == "measured" else find_cost(a.cost)  # a bad name is told before anything runs
    trace = the_trace(lab) if a.trace else None
    guests(lab)
    fitted = the_clock(lab, engines)
    server = make_server(lab, cost or fitted, trace)
    most = per_pattern(lab, server)
    if a.real:
        real_run(lab, engines, fitted, trace)
    else:
        virtual_run(lab, server, trace, most)
    load_sweep(lab, server, most)
    long_prompt(lab, server, engines)


def check_options(a: argparse.Namespace) -> None:
    for name, least in (("requests", 1), ("max_num_seqs", 1), ("num_blocks", 2)):
        value = getattr(a, name)
        if value is not None and value < least:
            raise LabError(f"--{name.replace('_', '-')} is {value}: it must be {least} or more")
    for name in ("rate", "burstiness", "ttft_slo", "tpot_slo"):
        value = getattr(a, name)
        if value is not None and not (value > 0 and (name == "rate" or math.isfinite(value))):
            raise LabError(f"--{name.replace('_', '-')} is {value}: a number above 0 is needed")
    if a.skip_bad_lines and not a.trace:
        raise LabError("--skip-bad-lines is for --trace FILE: give one, or leave it out")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add: Callable[..., Any] = parser.add_argument
    add("--pattern", default="mixed", choices=PATTERN_NAMES, help="who comes (mixed)")
    add(
        "--rate",
        type=float,
        metavar="R",
        help="requests a second; inf: all at once (70%% of what is possible)",
    )
    add("--requests", type=int, metavar="N", help="how many (2,000; of a trace all; with --real 100)")
    add(
        "--burstiness",
        type=float,
        default=1.0,
        metavar="B",
        help="1: Poisson; below 1 in bursts; above 1 evenly (1)",
    )
    add("--trace", metavar="FILE", help="serve these requests instead: Azure CSV or Mooncake JSONL")
    add("--skip-bad-lines", action="store_true", help="leave out lines of the trace that make no sense")
    add("--real", action="store_true", help="serve with the real engine, in real time")
    add(
        "--cost",
        default="l4:llama-3-8b",
        metavar="C",
        help="CARD:MODEL, measured, or a JSON file (l4:llama-3-8b)",
    )
    add("--save-cost", metavar="FILE", help="keep the clock fitted on this machine as JSON")
    add("--ttft-slo", type=float, default=1.0, metavar="S", help="limit for the first token, seconds (1)")
    add(
        "--tpot-slo",
        type=float,
        default=0.1,
        metavar="S",
        help="limit for the mean gap of an answer, seconds (0.1)",
    )
    add("--max-num-seqs", type=int, default=256, metavar="N", help="most requests that run at a time (256)")
    add(
        "--num-blocks",
        type=int,
        metavar="N",
        help="KV blocks of 16 tokens (what the card has room for, or 4096)",
    )
    add(
        "--policy",
        default="fcfs",
        choices=["fcfs", "priority"],
        help="priority: chat before code before summaries (fcfs)",
    )


def main(argv: list[str] | None = None) -> int:
    return run_lab(
        story,
        __doc__,
        options=("model", "device", "dtype", "seed", "quick"),
        add_arguments=add_arguments,
        argv=argv,
    )


if __name__ == "__main__":
    raise SystemExit(main())
