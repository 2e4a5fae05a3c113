"""Sampling: from the model's scores to one next token.

For each token of its vocabulary the model gives a score, the logit. Softmax turns logits into probabilities.
Now one has to be chosen. Always the likeliest token (greedy)? Then the same prompt always gives the same
text, which easily goes round in circles. Any token by its probability? Then sooner or later an absurd one
comes up, and the model must live with it. The knobs here lie between:

    temperature     makes differences larger or smaller
    top_k, top_p    cut off the long tail of unlikely tokens: by number, by probability
    min_p           the same, measured against the likeliest token
    penalties       make tokens that occurred already less likely

You will see one distribution under each knob, and what the model writes with it.

Sources: Holtzman et al., "The Curious Case of Neural Text Degeneration" (2020), section 3.1, for top_p;
Keskar et al., "CTRL" (2019), section 4.1, for the repetition penalty; the order is that of
vllm/v1/sample/sampler.py.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace

from labkit.lab import Lab, run_lab
from phase2_attention_kvcache.model.sampling import Sampler


def story(lab: Lab) -> None:
    from phase2_attention_kvcache.story.sampling_compared import (
        SETTINGS,
        Writer,
        draw_distributions,
        predict_chance,
        predict_knobs,
    )

    writer = Writer(lab.args.model, lab.args.prompt, lab.device)
    logits = writer.next_logits()
    raw = logits.softmax(-1)
    order = raw.argsort(descending=True).tolist()
    vocab = len(order)
    lab.say(f"""The model has read: "{lab.args.prompt}" It gives a logit to each of its {vocab:,} tokens.
        The likeliest ones to come next:""")
    lab.show("   ".join(f"{writer.name(i)} {raw[i]:.1%}" for i in order[:6]))

    lab.title("What each knob does to these logits")
    sampler = Sampler(writer.config.eos_token_ids)
    probs = dict(
        zip(SETTINGS, sampler.probabilities(logits.expand(len(SETTINGS), -1), list(SETTINGS.values())))
    )
    predict_knobs(lab, raw, probs, writer)
    rows = []
    for name, p in probs.items():
        entropy = -(p[p > 0] * p[p > 0].log()).sum().item()
        rows.append([name, int((p > 0).sum()), f"{p.max():.1%}", math.exp(entropy)])
    lab.table(
        "One distribution under each setting",
        ["setting", "tokens left", "likeliest one", "as many as ... equal choices"],
        rows,
        note="The last column is e to the power of the entropy: a die with that many sides is as uncertain.",
    )
    lab.record(prompt=lab.args.prompt, settings={row[0]: row[1:] for row in rows})
    lab.figure(draw_distributions(raw, probs, order[:10], writer), "sampling_knobs")
    lab.title("Chance, but reproducible")
    predict_chance(lab, sampler, logits)

    lab.title("What the model writes with each")
    num_tokens = 12 if lab.quick else 28
    answers = [writer.go_on(replace(p, seed=lab.seed), num_tokens) for p in SETTINGS.values()]
    lab.table(
        "Continuations, one setting after the other, all from the same seed",
        ["setting", "the text goes on", "different tokens"],
        [[n, writer.text(a), f"{len(set(a))} of {len(a)}"] for n, a in zip(SETTINGS, answers, strict=True)],
    )
    lab.say("""No knob knows what is true or good: they only reshape what the model believes. Greedy suits
        answers that must be the same every time. For prose, a temperature a little below 1 with top_p or
        min_p cuts the absurd tail and leaves the rest to chance.""")
    context = writer.config.max_context
    lab.say(f"""What it costs: a token has the same price however it is picked, but the knobs decide how
        many there are. n = 4 writes, and bills, four answers. Without max_tokens a request may write on to
        the end of the context, here {context:,} tokens: {context // 16} times the default of 16.""")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prompt", default="Once upon a time there was a little girl who", help="the text so far"
    )


def main(argv: Sequence[str] | None = None) -> int:
    return run_lab(
        story, __doc__, options=("model", "device", "seed", "quick"), add_arguments=add_arguments, argv=argv
    )


if __name__ == "__main__":
    raise SystemExit(main())
