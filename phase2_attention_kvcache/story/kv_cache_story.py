"""The chapters of the story of the KV cache, and its figures."""

import numpy as np
import torch

from labkit.figures import BLUE, MUTED, ORANGE, new_figure
from labkit.lab import Lab
from labkit.models import find_model
from phase1_tokens_embeddings.weights import SHAPES, kv_per_token
from phase1_tokens_embeddings.weights.gguf_model import load_tokenizer
from phase2_attention_kvcache.model import (
    GPT2_124M,
    ContiguousKVCache,
    ModelConfig,
    Transformer,
    generate_cached,
    generate_naive,
)
from phase2_attention_kvcache.story.step_times import measure_steps, total_times


def same_tokens(lab: Lab) -> None:
    """Part 1, on a model that can write: same output, counted work."""
    model = Transformer.from_pretrained(lab.args.model, lab.args.dtype, lab.device)
    tok = load_tokenizer(find_model(lab.args.model))
    prompt = tok.encode("Once upon")[:2]
    new = min(100, model.config.max_context - len(prompt))
    lab.title("The same tokens, counted work")
    lab.say(f"""The model writes {new} tokens after a prompt of {len(prompt)}, twice: naive, and with a cache.
        The counter sits in the loop that calls the model.""")
    naive = generate_naive(model, prompt, new)
    cached = generate_cached(model, prompt, new)
    equal = next((i for i, (a, b) in enumerate(zip(naive.token_ids, cached.token_ids)) if a != b), new)
    lab.predict(
        "same-tokens",
        f"of {new} tokens, how many are the same before the first difference",
        predicted=new,
        measured=equal,
        # In 16 bits the two largest logits may tie, and the order of additions decides.
        kind="structure" if model.dtype == torch.float32 else "timing",
    )
    p = len(prompt)
    lab.predict(
        "work-naive",
        f"token computations for {new} new tokens, naive",
        predicted=sum(range(p, p + new)),
        measured=naive.computed_tokens,
        source_says=5000 if new == 100 else None,
        tolerance=0.05,
        note=f"{p} + {p + 1} + ... + {p + new - 1}: it grows with the square of the length.",
    )
    lab.predict(
        "work-cached",
        "token computations with a cache",
        predicted=p + new - 1,
        measured=cached.computed_tokens,
        source_says=102 if new == 100 else None,
        note="The source counts the last token too, which is never fed to the model.",
    )
    ratio, less = naive.seconds / cached.seconds, naive.computed_tokens / cached.computed_tokens
    lab.record(tales=dict(naive_seconds=naive.seconds, cached_seconds=cached.seconds, speedup=ratio))
    lab.say(f"""The work is smaller by a factor of {less:.1f}. Time on this machine: {naive.seconds:.2f} s against
        {cached.seconds:.2f} s, faster by a factor of {ratio:.1f}. Why not by {less:.0f}? A step that computes many tokens reads
        the weights once for all of them, so each token costs less.""")


def timed_at_gpt2_size(lab: Lab) -> None:
    """Part 2, at the size of GPT-2 with random weights: TTFT and ITL."""
    lab.title(f"Time, at the size of GPT-2 (124M parameters, random weights, {lab.args.dtype})")
    model = Transformer.random(GPT2_124M, lab.args.dtype, lab.device, lab.seed)
    lengths = [5, 20, 45, 100, 250, 500, 1000] if not lab.quick else [5, 20, 45, 250, 1000]
    rounds = lab.progress(range(2 if lab.quick else 5), "timing prompts of 5 to 1,000 tokens")
    times = measure_steps(model, lengths, rounds)
    by_length = {t.tokens: t for t in times}
    new = np.arange(1, 901)
    naive, cached = total_times(times, 5, new)
    speedup = naive / cached

    times_as = dict(between=True, unit="x", kind="timing")
    lab.predict(
        "kv-speedup",
        "how many times faster a cache makes 100 new tokens",
        predicted=(2, 10),
        measured=round(float(speedup[99]), 1),
        source_says=3.1,
        tolerance=0.25,
        note=f"No single number: {speedup[9]:.1f}x for 10 tokens, {speedup[99]:.1f}x for 100, "
        f"{speedup[499]:.1f}x for 500, {speedup[899]:.1f}x for 900. It grows with the length.",
        **times_as,
    )

    def in_ms(step: str) -> str:
        return " / ".join(f"{1000 * getattr(by_length[n], step):.0f}" for n in (5, 20, 45))

    growth = by_length[1000].prefill / by_length[5].prefill
    lab.predict(
        "ttft-isl",
        "TTFT at 1,000 tokens over TTFT at 5: 200 times the prompt, how many times the wait",
        predicted=(2, 200),
        measured=growth,
        note=f"At 5 / 20 / 45 tokens {in_ms('prefill')} ms (the source: 27 / 24 / 40, which falls first). "
        f"A short prompt mostly waits for the weights to be read.",
        **times_as,
    )
    size = model.token_table.weight.element_size()
    kv_bytes, weight_bytes = 1000 * kv_per_token(GPT2_124M, size), GPT2_124M.num_parameters * size
    early, late = by_length[45].decode / by_length[5].decode, by_length[1000].decode / by_length[5].decode
    lab.predict(
        "itl-flat",
        "ITL at 45 tokens over ITL at 5: 9 times the text, how many times the wait",
        predicted=(0.6, 1.5),
        measured=early,
        note=f"At 5 / 20 / 45 tokens {in_ms('decode')} ms (the source: 8.1 / 9.6 / 9.9).",
        **times_as,
    )
    lab.predict(
        "itl-flat",
        "ITL at 1,000 tokens over ITL at 5",
        predicted=(1.1, 4),
        measured=late,
        source_says=1.0,
        tolerance=0.1,
        note=f"A step also reads the whole cache: {kv_bytes / 1e6:.0f} MB by then, beside {weight_bytes / 1e6:.0f} MB of weights, "
        f"in {lab.args.dtype}. If only bytes counted, it would be {1 + kv_bytes / weight_bytes:.2f} times as long.",
        **times_as,
    )
    rows = [[t.tokens, 1000 * t.prefill, 1000 * t.decode, t.tokens / t.prefill, 1 / t.decode] for t in times]
    columns = ["tokens of text", "TTFT, ms", "ITL, ms", "prefill tok/s", "decode tok/s"]
    lab.table("One user", columns, rows)
    lab.say(f"""What it costs: this machine reads {rows[-1][3]:,.0f} prompt tokens in the time in which it
        writes {rows[-1][4]:,.0f}. That is why services ask more for output tokens than for input tokens.""")
    lab.record(
        gpt2_steps=[vars(t) for t in times],
        gpt2_speedup={n: float(speedup[n - 1]) for n in (10, 100, 500, 900)},
    )
    lab.figure(draw_speedup(new, naive, cached, lab.where), "kv_speedup")


def memory(lab: Lab) -> None:
    """Part 3: the memory of the cache."""
    lab.title("The price: memory")
    cache = ContiguousKVCache(GPT2_124M)
    context = torch.zeros(
        GPT2_124M.max_context, GPT2_124M.num_kv_heads, GPT2_124M.head_dim, dtype=torch.float16
    )
    for layer in range(GPT2_124M.num_layers):
        cache.append(layer, context, context)
    per_token = cache.bytes_used // GPT2_124M.max_context
    lab.predict(
        "kv-15gb",
        "KV cache of 100 users with 4,096 tokens each, GPT-2 in FP16",
        predicted=kv_per_token(GPT2_124M) * 4096 * 100 / 1e9,
        measured=per_token * 4096 * 100 / 1e9,
        source_says=15,
        tolerance=0.01,
        unit="GB",
        note=f"{per_token:,} bytes per token, counted in a filled cache. (GPT-2's context ends at 1,024, so no "
        "such user exists. The memory would be real.)",
    )
    shape = SHAPES["llama-2-7b"]
    layer = ContiguousKVCache(ModelConfig(**(vars(shape) | {"num_layers": 1})))
    token = torch.zeros(1, shape.num_kv_heads, shape.head_dim, dtype=torch.float16)
    layer.append(0, token, token)
    lab.predict(
        "kv-per-token-layer",
        "KV cache of a token in one layer of Llama-2 7B, FP16",
        predicted=2 * 32 * 128 * 2 / 1024,
        measured=layer.bytes_used / 1024,
        unit="KiB",
        note="2 x 32 heads x 128 numbers x 2 bytes. Llama-3 8B has 8 KV heads instead of 32: 4 KiB.",
    )
    lab.say("""The reserved memory doubles when it is full, so up to half of it is empty. Reserving the whole context
        at once wastes more: most answers are short. Phase 3 allocates small blocks instead.""")


def draw_speedup(new: np.ndarray, naive: np.ndarray, cached: np.ndarray, where: str):
    fig, (left, right) = new_figure(
        "Without a cache, time grows with the square of the text",
        f"GPT-2's shape, one request, prompt of 5 tokens; summed from measured steps; {where}",
        panels=2,
    )
    left.plot(new, naive, color=ORANGE, label="without a cache")
    left.plot(new, cached, color=BLUE, label="with a KV cache")
    left.set(xlabel="new tokens", ylabel="total time, s", ylim=(0, None))
    left.legend()
    right.plot(new, naive / cached, color=BLUE)
    right.axhline(3.1, color=MUTED, linestyle="--")
    right.annotate('"How vLLM Actually Works": 3.1x', (new[-1], 3.3), ha="right", va="bottom")
    right.set(xlabel="new tokens", ylabel="times faster", ylim=(0, None))
    return fig
