"""The roofline: what limits a step, arithmetic or memory?

A processor does two things: it fetches numbers from memory, and it computes with them. Each has a top
speed, and a step can be no faster than the slower of the two allows. Which one it is depends on a single
figure, the arithmetic intensity: operations done for each byte fetched.

- Decode, one user: each weight is fetched, used for one multiplication and one addition, and dropped.
  In FP16 that is one FLOP per byte. Memory is the limit, and the arithmetic units idle.
- Prefill: each weight is fetched once and used for every token of the prompt. Arithmetic is the limit.

You will see both ceilings of this machine measured, then steps of 1 to 1,024 tokens placed under them,
and the time of each predicted before it is measured.

Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model" (2009).
"""

import argparse

from labkit.lab import Lab, run_lab
from phase2_attention_kvcache.measuring.roofline import measure_ceilings
from phase2_attention_kvcache.story import roofline_story as chapters


def story(lab: Lab) -> None:
    model, name = chapters.load_model(lab)
    ceilings = measure_ceilings(lab.device, lab.args.dtype, lab.quick)
    chapters.tell_ceilings(lab, ceilings)
    steps = chapters.tell_steps(lab, model, name, ceilings)
    lab.figure(chapters.draw_roofline(ceilings, steps, name, lab.where), "roofline")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    models = "gpt2-124m (GPT-2's shape, random weights, the default), tales, gpt2 or a model folder"
    parser.add_argument("--model", default="gpt2-124m", metavar="NAME", help=models)


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, ("device", "dtype", "seed", "quick"), add_arguments, argv)


if __name__ == "__main__":
    raise SystemExit(main())
