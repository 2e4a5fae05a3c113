"""Sampling: from the model's scores to one next token.

For each token of its vocabulary the model gives a score, the logit. Softmax turns logits into probabilities.
Now one has to be chosen. Always the likeliest token (greedy)? Then the same prompt always gives the same
text, which easily goes round in circles. Any token by its probability? Then sooner or later an absurd one
comes up, and all that follows builds on it. The knobs here lie between:

    temperature     makes differences larger or smaller
    top_k, top_p    cut off the long tail of unlikely tokens: by number, by probability
    min_p           the same, measured against the likeliest token
    penalties       make tokens that occurred already less likely

You will see one distribution under each knob, and what the model writes with it.

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
