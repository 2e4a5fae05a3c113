"""The model: GPT-2 and Llama from one set of layers, reading real checkpoints.

A language model is a stack of equal layers. Each layer adds two results to the vector of every token:

    x = x + attention(norm(x))    information from earlier tokens
    x = x + mlp(norm(x))          computed from this token alone

GPT-2 (2019) and Llama (2023) differ in four small parts of that layer:

                 GPT-2                        Llama
    norm         LayerNorm                    RMSNorm: no mean, no bias
    positions    a learned table, added once  rotation of q and k in each layer
    MLP          GELU, 2 matrices             SwiGLU, 3 matrices
    attention    every head has its own K, V  groups may share K, V (from Llama 2 70B on)

This script runs the embedded model, shows the shapes of its layers, and compares its logits
with Hugging Face's implementation.

Sources: Radford et al. 2019 (GPT-2), section 2.3; Touvron et al. 2023 (Llama), section 2.2.
"""

import argparse

from labkit.lab import Lab, run_lab
from labkit.models import find_model
from phase1_tokens_embeddings.weights.gguf_model import load_tokenizer
from phase2_attention_kvcache.model import Transformer
from phase2_attention_kvcache.story import inside_the_tower as chapters


def story(lab: Lab) -> None:
    folder = find_model(lab.args.model)
    tok = load_tokenizer(folder)
    model = Transformer.from_pretrained(folder, lab.args.dtype, lab.device)
    ids = chapters.encode_prompt(lab, model, tok)
    chapters.tell_parameters(lab, model)
    chapters.tell_agreement(lab, model, folder, ids)
    chapters.tell_layers(lab, model, tok, ids)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    start = "Once upon a time there was a king who had a"  # the beginning of alice's prompt
    parser.add_argument("--prompt", default=start, help="text to continue")


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, ("model", "device", "dtype"), add_arguments, argv)


if __name__ == "__main__":
    raise SystemExit(main())
