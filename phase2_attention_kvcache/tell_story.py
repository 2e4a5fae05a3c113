"""One thread from text to text: the model tells a story, token by token.

Everything written so far works together here. The tokenizer (Phase 1) turns the prompt into ids. The
transformer computes them in one step (prefill), then one token a step (decode), and the KV cache keeps
what was computed. The sampler picks a token from the scores, and the stream decoder shows its text as
soon as the characters are whole.
"""

import argparse

from labkit.foreign import harmless
from labkit.lab import Lab, run_lab
from labkit.machine import environment
from labkit.models import find_model
from labkit.options import between, whole
from phase1_tokens_embeddings.tokens import StreamDecoder
from phase1_tokens_embeddings.weights.gguf_model import load_tokenizer
from phase2_attention_kvcache.model import SamplingParams, Transformer, generate_cached
from phase2_attention_kvcache.model.generation import check_prompt, sampled
from phase2_attention_kvcache.story.telling import WordWrap


def story(lab: Lab) -> None:
    a = lab.args
    folder = find_model(a.model)
    tok = load_tokenizer(folder)
    model = Transformer.from_pretrained(folder, a.dtype, lab.device)
    params = SamplingParams(temperature=a.temperature, top_p=a.top_p, max_tokens=a.tokens, seed=a.seed)
    lab.title(f"{a.model} goes on from: {a.prompt}")

    def write(text: str) -> None:
        lab.console.file.write(harmless(text))
        lab.console.file.flush()

    ids = tok.encode(a.prompt) or [tok.eos_token_id or 0]
    prompt_tokens, ends = len(ids), model.config.eos_token_ids
    check_prompt(model, ids, a.tokens)  # before anything is shown
    wrap, stream = WordWrap(write, lab.console.width - 4), StreamDecoder(tok, True, continues=True)
    wrap(a.prompt)
    choose = sampled(params, ids, ends)
    result = generate_cached(model, ids, a.tokens, choose, ends, lambda token: wrap(stream.push(token)))
    wrap(stream.finish() + "\n")

    lab.title("What it took")
    lab.predict(
        "story-work",
        f"token computations: {prompt_tokens} tokens of the prompt, then {len(result.token_ids)} new ones",
        predicted=prompt_tokens + len(result.token_ids) - 1,
        measured=result.computed_tokens,
        note="What follows the last token is not asked for, so it is never computed.",
    )
    if len(result.token_ids) > 1:
        lab.table(
            f"{lab.device}, {a.dtype}, {environment()['threads']} threads",
            ["prompt tokens", "new tokens", "TTFT, ms", "ITL, ms", "tokens per second"],
            [[prompt_tokens, len(result.token_ids), 1e3 * result.ttft, 1e3 * result.itl, 1 / result.itl]],
            note="TTFT: time to first token, the prompt included. ITL: time from one token to the next.",
        )
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        lab.say(
            f"What happened: the prompt went through the {model.config.num_layers} layers in one step, then each new token "
            f"in a step of its own. Every step read all {weights / 1e6:.0f} MB of weights, and the keys and values of all tokens before."
        )
    lab.record(token_ids=result.token_ids, ttft_s=result.ttft, seconds=result.seconds)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--prompt", default="Once upon a time there was a king who", help="how the story begins")
    add("--tokens", type=whole(1, 10**6), default=160, help="most tokens to write (160)")
    add("--temperature", type=between(0, 1e6), default=0.8, help="0: always the most probable token (0.8)")
    add(
        "--top-p",
        type=between(0, 1),
        default=0.95,
        help="sample from the most probable tokens with this share together (0.95)",
    )


def main(argv: list[str] | None = None) -> int:
    options = ("model", "device", "dtype", "seed")
    return run_lab(story, __doc__, options, add_arguments, argv)


if __name__ == "__main__":
    raise SystemExit(main())
