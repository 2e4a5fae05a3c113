"""The story of triton_paged_attention.py: the proofs, the split rule, the engine."""

import math
import warnings

import numpy as np
import torch
from torch import Tensor

from labkit.figures import BLUE, GREY, ORANGE, PURPLE, TEAL, YELLOW, new_figure, plain_numbers
from labkit.lab import Lab
from labkit.models import find_model
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase1_tokens_embeddings.weights import SHAPES
from phase2_attention_kvcache.model import SamplingParams, Transformer
from phase3_paged_attention.paging import PagedKVCache
from phase3_paged_attention.paging.paged_attention import paged_attention_loops
from phase4_scheduler.engine import EngineConfig, LLMEngine
from phase5_real_gpu.kernels import TritonPagedKVCache, paged_decode, paged_prefill, write_kv
from phase5_real_gpu.kernels.split_rule import choose_splits, split_times
from phase5_real_gpu.kernels.triton_setup import HAS_TRITON, INTERPRETED, card_problem
from phase5_real_gpu.ladder.counted_loads import expected, random_step
from phase5_real_gpu.ladder.ladder_rungs import Shape
from phase5_real_gpu.story.ladder_figures import H100_PROGRAMS

BLOCK = 16
TILE = 64
LATENCY = 480 / 1.755e9  # seconds of a load from HBM on an idle H800 PCIe (Luo et al., 2024)
SATURATING = 3.35e12 * LATENCY / 2**15  # an H100's bandwidth x latency, over 32 KiB of keys and values


def where_kernels_run(lab: Lab, device: str) -> None:
    where = "in Triton's interpreter, on the CPU" if INTERPRETED else "on this GPU, compiled"
    lab.say(
        f"On this machine the kernels run {where if HAS_TRITON else 'not at all: Triton exists for Linux only'}."
    )
    if device == "cuda" and (problem := card_problem(torch.float32)):
        raise ValueError(problem)
    if HAS_TRITON and not INTERPRETED and device == "cpu":
        raise ValueError("Triton compiles for the GPU here: set TRITON_INTERPRET=1 to interpret on the CPU")


# ---------------------------------------------------------------------- the proof


def same_numbers(lab: Lab, device: str) -> None:
    lab.title("The same numbers as Phase 3")
    query_lens, context_lens = [1, 9, 1, 21], [70, 9, 1, 40]
    shape = Shape(context_lens, num_heads=4, num_kv_heads=2, head_dim=32, block_size=BLOCK, itemsize=4)
    step = random_step(shape, torch.float32, device, lab.seed, query_lens)
    q, k_cache, v_cache, tables, lens = step
    exact = expected(step, query_lens)
    loops = paged_attention_loops(  # of the first request, by plain Python
        q[0].tolist(), k_cache.tolist(), v_cache.tolist(), tables[0].tolist(), context_lens[0]
    )
    apart = _difference(torch.tensor(loops), exact[0])
    lab.say("""Four requests: one with 70 tokens that decodes, a new prompt, one with a single token, and a chunk of a
        prompt after a prefix. Their blocks are scattered, the rest of the memory is NaN, and the entry after
        the end of each block table names a block that does not exist.""")
    if not HAS_TRITON:
        lab.cannot_measure(
            "kernels-agree",
            "the three kernels agree with Phase 3",
            "GPU",
            "Triton exists for Linux only. Phase 3's implementations are compared instead:",
        )
        lab.say(f"Plain loops and tensors differ by {apart:.0e} at most.")
        return
    tokens = [torch.arange(n, device=device) for n in context_lens]
    slots = torch.cat([table[t // BLOCK].long() * BLOCK + t % BLOCK for table, t in zip(tables, tokens)])
    written = torch.full_like(k_cache, math.nan), torch.full_like(v_cache, math.nan)
    write_kv(*(cache.view(-1, 2, 32)[slots] for cache in (k_cache, v_cache)), *written, slots)
    lab.predict(
        claim="write-kv-agrees",
        question="write_kv: numbers that are not where they should be, in the whole memory",
        predicted=0,
        measured=sum(int((a.nan_to_num() != b.nan_to_num()).sum()) for a, b in zip(written, step[1:3])),
    )
    starts = torch.tensor(np.cumsum([0, *query_lens]), dtype=torch.int32, device=device)
    prefill = paged_prefill(q, *written, tables, starts, lens)
    worst = {"paged_prefill": _difference(prefill, exact)}
    first_rows = starts[:-1].long()  # a decode row for each request: it sees all but the tokens behind it
    seen = lens - starts.diff() + 1
    for n in (1, 2, 5):
        out = paged_decode(q[first_rows], *written, tables, seen, num_splits=n)
        worst[f"paged_decode, {n} split{'s' * (n > 1)}"] = _difference(out, exact[first_rows.cpu()])
    lab.predict(
        claim="kernels-agree",
        question="paged_prefill and paged_decode, in 1, 2 and 5 splits, are within 1e-05 of float64",
        predicted=True,
        measured=max(worst.values()) < 1e-5,
        note="; ".join(f"{name}: {value:.0e}" for name, value in worst.items())
        + f". Plain loops: {apart:.0e}.",
    )


def _difference(a: Tensor, b: Tensor) -> float:
    return float((a.cpu().double() - b.cpu().double()).abs().max())


# ---------------------------------------------------------------------- the split rule


def how_many_splits(lab: Lab) -> None:
    lab.title("How many splits?")
    heads = SHAPES["llama-3-8b"].num_kv_heads
    lab.say(f"""Splits make more programs. With too few, multiprocessors are idle; with too many, the merge and half-empty last
        rounds cost more than they gain. `kernels/split_rule.py` counts rounds: programs, divided by those that are resident
        ({H100_PROGRAMS} on an H100), rounded up, times the tokens of a split. It takes the fewest splits that
        reach at least 85% of the best speed.""")
    alone = choose_splits([32768], heads, H100_PROGRAMS, TILE)
    lab.predict(
        claim="splits-one-user",
        question=f"one request of 32,768 tokens, {heads} KV heads, {H100_PROGRAMS} resident programs: splits",
        predicted=43,
        measured=alone.num_splits,
        note=f"{H100_PROGRAMS} / {heads} = 49 splits would fit into one round; in whole tiles of {TILE} the shortest round "
        "is 704 tokens. 85% of that speed allows rounds of up to 828 tokens: 768, and 43 splits are enough.",
    )
    crowd = choose_splits([4096] * 64, heads, H100_PROGRAMS, TILE)
    lab.predict(
        claim="splits-many-users",
        question="64 requests of 4,096 tokens each: splits",
        predicted=2,
        measured=crowd.num_splits,
        note=f"{64 * heads} programs are two rounds, the second nearly empty. In two splits they are three rounds half as long.",
    )
    cases = {
        "1 request x 32,768": [32768],
        "4 requests x 8,192": [8192] * 4,
        "64 requests x 4,096": [4096] * 64,
        "96 requests x 4,096": [4096] * 96,
        "1 x 32,768 and 63 x 512": [32768] + [512] * 63,
    }
    lab.say(f"""The figure holds more cases. One long context among short ones shows why the splits of each request are counted:
        in one split, its eight programs would run long after all others are done. The rule knows no bandwidth. By Little's law
        {SATURATING:.0f} programs reach that of an H100 at the latency of an idle one; the lower panel adds this floor. Whether latency under
        load is high enough for the rule, no GPU has measured yet.""")
    lab.figure(draw_splits(cases, heads), "how_many_splits")


def draw_splits(cases: dict[str, list[int]], heads: int):
    fig, panels = new_figure(
        "With the bandwidth as a floor, full batches gain nothing from splits",
        f"Computed, not timed, for an H100 at idle latency: {heads} KV heads, {H100_PROGRAMS} resident programs",
        panels=2,
        size=(7.2, 8.2),
        sharex=True,
    )
    titles = (
        "The rule: rounds of programs, each waiting once per tile",
        f"The same, but never faster than the bandwidth ({SATURATING:.0f} programs reach it)",
    )
    for ax, title, saturating in zip(panels, titles, (math.inf, SATURATING)):
        for (name, lens), color in zip(cases.items(), (BLUE, ORANGE, TEAL, PURPLE, YELLOW)):
            _, latencies = split_times(lens, heads, H100_PROGRAMS, TILE, saturating)
            us = 1e6 * LATENCY * latencies
            ax.plot(range(1, len(us) + 1), us, color=color, linewidth=1.6, label=name)
            chosen = choose_splits(lens, heads, H100_PROGRAMS, TILE).num_splits
            ax.plot(chosen, us[chosen - 1], "o", color=color, markersize=9, markeredgecolor="white")
        ax.set(xscale="log", yscale="log", title=title, ylabel="µs", ylim=(2, 700))
        plain_numbers(ax, "y")
    ticks = [1, 2, 4, 8, 16, 32, 64, 128]
    panels[1].set_xticks(ticks, [str(t) for t in ticks])
    panels[1].set_xlabel("splits of the longest context")
    panels[1].plot([], [], "o", color=GREY, markersize=9, label="chosen by the rule")
    panels[1].legend(loc="lower left", fontsize=9)
    return fig


# ---------------------------------------------------------------------- the engine


def engine_on_kernels(lab: Lab, device: str) -> None:
    lab.title("The engine on these kernels")
    if not HAS_TRITON:
        lab.say("(Left out: Triton is not here. The engine of Phase 4 runs on the CPU, or on torch alone.)")
        return
    folder = find_model("tales")
    model = Transformer.from_pretrained(folder, "float32", device)
    tok = BPETokenizer.from_file(folder / "tokenizer.json")
    prompts = ["Once upon a time there was", "The king said"]
    params = SamplingParams(max_tokens=4 if INTERPRETED else 40, temperature=0)
    config = EngineConfig(max_num_seqs=2, num_blocks=64)
    lab.say(f"""`TritonPagedKVCache` replaces `PagedKVCache`. Model, scheduler and sampler stay the same.
        {"In the interpreter each of the six layers takes a good part of a second, so the answers are short." if INTERPRETED else ""}""")
    texts = {}
    for name, make in (("torch", PagedKVCache), ("kernels", TritonPagedKVCache)):
        cache = make(model.config, 64, BLOCK, model.dtype, device)
        engine = LLMEngine(model, tok, config, kv_cache=cache)
        if name == "kernels" and not INTERPRETED:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message=".*(gather|without further CUDA graphs)")
                engine = LLMEngine(model, tok, config)  # on a GPU it takes kernels and CUDA graphs by itself
        texts[name] = [out.text for out in engine.generate(prompts, params)]
    lab.predict(
        claim="engine-on-kernels",
        question="greedy answers on the kernels are the same, character by character",
        predicted=True,
        measured=texts["torch"] == texts["kernels"],
        note=" · ".join(p + t for p, t in zip(prompts, texts["kernels"])).replace("\n", " "),
    )
