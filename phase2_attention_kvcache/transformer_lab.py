"""The model: GPT-2 and Llama from one set of blocks, reading real checkpoints.

A language model is a tower of equal blocks. Each block does two things to every token:

    x = x + attention(norm(x))    look at earlier tokens, and take something from them
    x = x + mlp(norm(x))          think about it alone

GPT-2 (2019) and Llama (2023) differ in four small parts of that block, no more:

                 GPT-2                        Llama
    norm         LayerNorm                    RMSNorm: no mean, no bias
    positions    a learned table, added once  rotation of q and k in each layer
    MLP          GELU, 2 matrices             SwiGLU, 3 matrices
    attention    every head has its own K, V  groups may share K, V (from Llama 2 70B on)

This script runs the embedded model, shows the shape of its tower, and checks every number it
computes against Hugging Face's implementation.

Tokens are flat: a call takes N tokens, whoever they belong to, and there is no batch dimension. The
model does not know where its keys and values live; it hands them to `kv.attend`, and a cache object
answers. Each phase of the course brings another such object.

Sources: Radford et al. 2019 (GPT-2), section 2.3; Touvron et al. 2023 (Llama), section 2.2.
"""

from __future__ import annotations

import torch

from labkit.lab import Lab, run_lab
from labkit.models import find_model
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.model.transformer import Transformer
from phase2_attention_kvcache.story.inside_the_tower import (
    draw_layers,
    guesses_by_layer,
    largest_difference,
    parts_of,
)


def story(lab: Lab) -> None:
    folder = find_model(lab.args.model)
    tok = BPETokenizer.from_file(folder / "tokenizer.json")
    model = Transformer.from_pretrained(folder, lab.args.dtype, lab.device)
    c = model.config
    lab.say(f"""A token enters as a vector of {c.d_model} numbers. {c.num_layers} blocks change it, one after
        the other. The last vector is compared with all {c.vocab_size:,} rows of the token table: the
        best match is the next token.""")

    lab.title("Where the parameters are")
    parts = parts_of(model)
    rule = 12 * c.num_layers * c.d_model**2
    in_blocks = sum(n for name, n in parts if "all layers" in name)
    if c.family == "gpt2":
        lab.predict(
            claim="parameters-of-blocks",
            question="parameters in the blocks, by the rule 12 x layers x width^2",
            predicted=rule,
            measured=in_blocks,
            tolerance=0.02,
            note="Per block: 4 squares in attention (q, k, v, out), 8 in the MLP (up to 4 widths and back).",
        )
    total = sum(p.numel() for p in model.parameters())
    lab.table(
        f"{lab.args.model}: {total:,} parameters", ["part", "parameters", "share %"],
        [[name, n, 100 * n / total] for name, n in parts],
        note=f"Each token costs about 2 x {total / 1e6:.1f}M operations: one multiplication and one addition "
             "per parameter.",
    )  # fmt: skip

    lab.title("The same numbers as Hugging Face's implementation")
    ids = torch.tensor(tok.encode(lab.args.prompt) or [tok.eos_token_id or 0], device=lab.device)
    if len(ids) > c.max_context:
        raise ValueError(
            f"the prompt has {len(ids)} tokens, this model's context is {c.max_context}: shorten it"
        )
    difference, largest = largest_difference(model, folder, ids)
    lab.predict(
        claim="logits-equal-transformers",
        question="our logits and transformers' agree in float32, to a hundred-thousandth of the largest",
        predicted=True,
        measured=difference < 1e-5 * largest,
        note=f"Largest difference over {len(ids)} tokens x {c.vocab_size:,} scores: {difference:.1e}. "
        f"Largest score: {largest:.1f}.",
    )

    lab.title("How the answer forms, layer by layer")
    layers = guesses_by_layer(model, ids)
    best = layers[-1].topk(5)
    names = [repr(tok.decode([i])) for i in best.indices.tolist()]
    lab.table(
        f"The model's five best next tokens after {lab.args.prompt!r}", ["token", "probability %"],
        [[name, 100 * p] for name, p in zip(names, best.values.tolist())],
    )  # fmt: skip
    lab.record(
        parameters=total,
        largest_logit_difference=difference,
        next_tokens=dict(zip(names, best.values.tolist())),
    )
    lab.figure(draw_layers(layers[1:, best.indices].cpu(), names, lab.args.prompt), "answer_by_layer")


def main(argv: list[str] | None = None) -> int:
    return run_lab(
        story,
        __doc__,
        options=("model", "device", "dtype"),
        add_arguments=lambda parser: parser.add_argument(
            "--prompt", default="Once upon a time there was a king who had three", help="text to continue"
        ),
        argv=argv,
    )


if __name__ == "__main__":
    raise SystemExit(main())
