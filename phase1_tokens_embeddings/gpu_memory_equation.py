"""The GPU memory equation: which model fits on which GPU, and for how many users.

    memory = weights + KV cache + a margin

All users share the weights. The KV cache holds, for every token of every user, one key and one value in every layer. So the
weights decide whether a model runs on a GPU at all, and the KV cache decides how many users it can serve. Both follow from
about ten numbers in the model's config.json, so no GPU is needed to compute them.

    python phase1_tokens_embeddings/gpu_memory_equation.py --model llama-3-70b --card h100 --precision Q4_K_M
"""

import argparse

from labkit.lab import Lab, run_lab
from labkit.options import whole
from phase1_tokens_embeddings.story import memory_equation_story as chapters
from phase1_tokens_embeddings.weights import (
    CARDS,
    PRECISIONS,
    SHAPES,
    find_card,
    find_precision,
    find_shape,
    users_that_fit,
)
from phase1_tokens_embeddings.weights.memory_math import KV_BYTES


def story(lab: Lab) -> None:
    a = lab.args
    shape, card, precision = find_shape(a.model), find_card(a.card), find_precision(a.precision)
    if a.context is None:
        a.context = min(4096, shape.max_context)
    users_that_fit(shape, card, a.context, precision, KV_BYTES[a.kv])  # a wrong option ends here
    lab.say("""memory = weights + KV cache + a margin. The weights are there once; the cache grows with every
        user.""")
    chapters.tell_units(lab)
    chapters.tell_kv(lab)
    chapters.tell_your_model(lab, shape, card, precision)
    chapters.tell_users(lab, shape, precision, list(CARDS.values()))
    lab.title("The picture")
    others = [SHAPES[n] for n in ("llama-3.2-1b", "llama-3.2-3b", "llama-2-7b", "qwen2.5-7b")]
    chapters.draw(lab, shape, card, precision, [s for s in others if s.name != shape.name])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    models = f"tales, a model folder, or a published shape: {', '.join(SHAPES)} (llama-3-8b)"
    add("--model", default="llama-3-8b", metavar="NAME", help=models)
    add("--card", default="l4", metavar="CARD", help=f"{', '.join(CARDS)} (l4)")
    add(
        "--context",
        type=whole(1, 10**9),
        metavar="N",
        help="tokens of each user (4096, or the model's context if shorter)",
    )
    add("--precision", default="FP16", metavar="P", help=f"of the weights: {', '.join(PRECISIONS)} (FP16)")
    add("--kv", default="FP16", choices=list(KV_BYTES), help="precision of the KV cache (FP16)")


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("quick",), add_arguments=add_arguments, argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
