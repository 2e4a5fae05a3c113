"""Write the card of a trained model: loss curve, figures, samples, and what it cannot do.

    python phase2_attention_kvcache/training/model_card.py labkit/models/tales --data "English stories, ..."

The folder is what train_model.py wrote.
"""

import argparse
import json
from pathlib import Path

from labkit.figures import BLUE, GREY, ORANGE, new_figure
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.model import SamplingParams, Transformer
from phase2_attention_kvcache.story.telling import WordWrap, tell

PROMPTS = [
    "Once upon a time there was a king who",
    '"What is that?" said the rabbit',
    "In the middle of the forest",
]

CARD = """\
# {preset}

A GPT-2 of {parameters:,} parameters ({layers}, {width} wide, {heads} heads of {head_dim}, context {context}),
trained for this course. {purpose}
It loads with the course's own code, and with `AutoModelForCausalLM` and `AutoTokenizer` of transformers.

| | |
|---|---|
| data | {training_bytes:,} bytes of {data} |
| tokenizer | byte-level BPE, {vocab:,} tokens, trained on the same text by `phase1_tokens_embeddings` |
| training | {steps:,} steps of {tokens_per_step:,} tokens ({epochs:.1f} times through the text), {minutes:.0f} minutes on {machine} that also did other work |
| method | Muon for the matrices, AdamW for the rest; windows of 256, then 512, then 1,024 tokens; dropout 0.1; `phase2_attention_kvcache/training/train_model.py`, seed {seed} |
| result | **{valid_bits_per_byte:.3f} bits per byte** on the validation text ({valid_bytes:,} bytes), measured on the saved 16-bit weights |
| licence | MIT, as the course |

![Loss while training](loss_curve.png)

Bits per byte is how many bits the model needs, on average, to write down one byte of text that it has not seen. Plain
text has 8; `gzip -9` needs {gzip_bits_per_byte:.2f} on this text.

{note}

## Samples

Not chosen: seeds 1 to {num_samples}, temperature 0.8, top-p 0.95. The prompt is in bold.

{samples}

## What it cannot do

It knows no facts beyond its books and follows no instructions. It keeps up a sentence, often a paragraph, rarely a plot.
Names change sex and persons change places. Its language, and its views of people, are those of its books, most of
them a hundred years old and more. Use it to see an engine at work, for nothing else.
"""

PURPOSE = {
    "tales": "It is small enough to live in a repository and large enough to write English.",
    "tales-draft": "It drafts what `tales` will write (speculative decoding): same vocabulary, a fraction of the work.",
}


def draw_loss(log: list[dict], bits_per_byte: float, name: str):
    fig, (left, right) = new_figure(
        f"{name} needs {bits_per_byte:.2f} bits for a byte of unseen text",
        "Left: loss of each step. Right: validation text, read in windows of the length trained at that time",
        panels=2,
    )
    left.plot([r["tokens"] / 1e6 for r in log], [r["loss"] for r in log], color=BLUE, linewidth=1)
    left.set(xlabel="million tokens seen", ylabel="loss, nats per token")
    checked = [r for r in log if "valid_bits_per_byte" in r]
    seen, bits = [r["tokens"] / 1e6 for r in checked], [r["valid_bits_per_byte"] for r in checked]
    right.plot(seen, bits, color=ORANGE, marker="o", markersize=3)
    right.axhline(bits_per_byte, color=GREY, linestyle="--", linewidth=1.2, label="all of it, saved weights")
    right.set(xlabel="million tokens seen", ylabel="bits per byte")
    right.legend()
    return fig


def write_sample(model: Transformer, tok: BPETokenizer, prompt: str, seed: int) -> str:
    pieces: list[str] = []
    wrap = WordWrap(pieces.append, width=112)
    wrap(prompt)
    room = model.config.max_context - len(tok.encode(prompt))
    params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=min(120, room), seed=seed)
    tell(model, tok, prompt, params, wrap)
    return f"> **{prompt}**" + "".join(pieces[1:]).replace("\n", "\n> ")


def main() -> None:
    as_it_is = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_it_is)
    parser.add_argument("model", type=Path, help="folder of a model made by train_model.py")
    parser.add_argument("--data", default="text", help="what it was trained on, and under which licence")
    parser.add_argument("--note", default="", help="what else a reader should know of the training")
    args = parser.parse_args()
    log = json.loads((args.model / "training_log.json").read_text(encoding="utf-8"))
    model = Transformer.from_pretrained(args.model)
    tok = BPETokenizer.from_file(args.model / "tokenizer.json")
    c = model.config

    draw_loss(log["log"], log["valid_bits_per_byte"], log["preset"]).savefig(args.model / "loss_curve.png")
    samples = [write_sample(model, tok, prompt, seed) for seed, prompt in enumerate(PROMPTS, 1)]
    card = CARD.format(
        **log,
        layers=f"{c.num_layers} layer{'s' * (c.num_layers > 1)}",
        width=c.d_model,
        heads=c.num_heads,
        head_dim=c.head_dim,
        context=c.max_context,
        purpose=PURPOSE.get(log["preset"], ""),
        data=args.data,
        note=args.note,
        vocab=c.vocab_size,
        epochs=log["steps"] * log["tokens_per_step"] / log["training_tokens"],
        minutes=log["seconds"] / 60,
        num_samples=len(samples),
        samples="\n\n".join(samples),
    )
    (args.model / "README.md").write_text(card, encoding="utf-8")
    print(card)


if __name__ == "__main__":
    main()
