"""Sampling: from the model's scores to one next token.

For each token of its vocabulary the model gives a score, the logit. Softmax turns logits into probabilities.
Then one token is chosen. The most probable one (greedy) gives the same text every time, and often a repetitive
one. A random draw from all tokens sooner or later takes an absurd one, and the rest of the text builds on it.
The sampling parameters lie between:

    temperature     makes differences larger or smaller
    top_k, top_p    cut off the long tail of unlikely tokens: by number, by probability
    min_p           the same, relative to the most probable token
    penalties       make tokens that occurred already less likely

You will see one distribution under each parameter, and the text that the model writes with it.

Sources: Holtzman et al., "The Curious Case of Neural Text Degeneration" (2020), section 3.1, for top_p;
Keskar et al., "CTRL" (2019), section 4.1, for the repetition penalty; the order is that of
vllm/v1/sample/sampler.py.
"""

import argparse
from collections.abc import Sequence

from labkit.lab import Lab, run_lab
from phase2_attention_kvcache.model import Sampler
from phase2_attention_kvcache.story import sampling_story as chapters


def story(lab: Lab) -> None:
    writer = chapters.Writer(lab.args.model, lab.args.prompt, lab.device)
    sampler = Sampler(writer.config.eos_token_ids)
    logits = writer.next_logits()
    chapters.tell_knobs(lab, writer, sampler, logits)
    chapters.tell_chance(lab, sampler, logits)
    chapters.tell_continuations(lab, writer)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    start = "Once upon a time there was a little girl who"
    parser.add_argument("--prompt", default=start, help="the text so far")


def main(argv: Sequence[str] | None = None) -> int:
    options = ("model", "device", "seed", "quick")
    return run_lab(story, __doc__, options, add_arguments, argv)


if __name__ == "__main__":
    raise SystemExit(main())
