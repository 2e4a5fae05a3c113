"""The capacity planner: how many cards does it take, what do they cost, and what breaks first?

You name a model, a card, the traffic, and the SLO: a first token within so many seconds, the
others so many seconds apart, for so many of the requests. A whole fleet is then simulated in virtual time, with the
scheduler and the block manager of this course in each replica and one router in front, and the smallest fleet that
meets the SLO is searched for.

You will see: the plan with its uncertainty; what more or fewer cards would do; the cheapest combination of bits, cards a replica
and chunks, with the commands that start it; what the router in front is worth.

    python phase4_scheduler/capacity_planner.py --card h100 --pattern code --rate 8 --tpot-slo 0.03
    python phase4_scheduler/capacity_planner.py --model llama-3-70b --card h100 --tensor-parallel-size 4
    python phase4_scheduler/capacity_planner.py --trace conversation.jsonl --router prefix-aware

A step's time is computed from the card's data sheet, times --efficiency. The plan says how far recordings of real cards were from
this clock. With --tensor-parallel-size a replica takes several cards, which share every layer; what crosses between them takes
as long as others have measured.
"""

import argparse

from labkit.lab import Lab, run_lab
from labkit.options import between, whole
from phase1_tokens_embeddings.weights import CARDS, PRECISIONS, SHAPES
from phase1_tokens_embeddings.weights.memory_math import KV_BYTES
from phase4_scheduler.simulator.planning import CLOCK_EFFICIENCY, MOST_REPLICAS
from phase4_scheduler.simulator.routers import ROUTERS
from phase4_scheduler.simulator.traffic import PATTERN_NAMES
from phase4_scheduler.story import capacity_story as chapters
from phase4_scheduler.story.capacity_combinations import the_combinations
from phase4_scheduler.story.capacity_task import SHARED_BY, the_task


def story(lab: Lab) -> None:
    task = the_task(lab)
    plan = chapters.the_plan(lab, task)
    chapters.fewer_and_more(lab, task, plan)
    the_combinations(lab, task, plan)
    chapters.the_router(lab, task, plan)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    seconds = between(0.001, 10**6)
    for name, kind, metavar, default, text in (
        ("--model", str, "NAME", "llama-3-8b", f"a folder, or one of {', '.join(SHAPES)} (llama-3-8b)"),
        ("--card", str, "CARD", "l4", f"{', '.join(CARDS)} (l4)"),
        ("--precision", str, "P", "FP16", f"of the weights: {', '.join(PRECISIONS)} (FP16)"),
        ("--prompt-tokens", whole(1, 10**6), "N", None, "of each request, in place of the pattern's lengths"),
        ("--answer-tokens", whole(1, 10**6), "N", None, "of each request, in place of the pattern's lengths"),
        ("--price", between(0.001, 10**6), "DOLLARS", None, "of a card an hour, in place of our rough one"),
        (
            "--efficiency",
            between(0.01, 1),
            "SHARE",
            None,
            f"of the card's data sheet ({CLOCK_EFFICIENCY}; on a card with a recording as recorded)",
        ),
        ("--rate", between(0.001, 10**6), "R", None, "requests per second (4; of a trace its own)"),
        ("--requests", whole(20, 10**6), "N", None, "how many to simulate (600; with --quick 250)"),
        ("--burstiness", between(0.001, 1000), "B", 1.0, "1: Poisson; below 1 in bursts; above 1 evenly (1)"),
        ("--system-prompt", whole(0, 10**5), "N", 0, "tokens with which all prompts of a pattern begin (0)"),
        ("--trace", str, "FILE", None, "plan for these requests instead: Azure CSV or Mooncake JSONL"),
        ("--ttft-slo", seconds, "S", 2.0, "SLO: first token within so many seconds (2)"),
        ("--tpot-slo", seconds, "S", 0.1, "SLO: mean gap of an answer, seconds (0.1)"),
        ("--share", between(0.01, 1), "SHARE", 0.95, "of the requests that must see both (0.95)"),
        ("--max-num-seqs", whole(1, 10**5), "N", 256, "most requests that run at a time in a replica (256)"),
        ("--max-num-batched-tokens", whole(1, 10**6), "N", 2048, "most tokens of a step (2048)"),
        ("--most", whole(1, 10**4), "N", MOST_REPLICAS, f"most cards to try ({MOST_REPLICAS})"),
    ):
        parser.add_argument(name, type=kind, metavar=metavar, default=default, help=text)
    for name, kind, default, choices, text in (
        ("--pattern", str, "summarisation", PATTERN_NAMES, "which traffic comes (summarisation)"),
        ("--router", str, "least-loaded", list(ROUTERS), "what chooses the replica (least-loaded)"),
        ("--kv-precision", str, "FP16", list(KV_BYTES), "of the KV cache (FP16)"),
        ("--tensor-parallel-size", int, 1, SHARED_BY, "cards of a replica, which share every layer (1)"),
    ):
        parser.add_argument(name, type=kind, default=default, choices=choices, help=text)


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("seed", "quick"), add_arguments=add_arguments, argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
