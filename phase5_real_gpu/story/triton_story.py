"""The story of triton_paged_attention.py: the proofs, the split rule, the engine."""

import math
import warnings

import numpy as np
import torch
from torch import Tensor

from labkit.figures import BLUE, GREY, ORANGE, PURPLE, TEAL, YELLOW, new_figure
from labkit.lab import Lab
from labkit.models import find_model
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase1_tokens_embeddings.weights import SHAPES
from phase2_attention_kvcache.model import SamplingParams, Transformer
from phase3_paged_attention.paging import PagedKVCache
from phase3_paged_attention.paging.paged_attention import paged_attention_loops
from phase4_scheduler.engine import EngineConfig, LLMEngine
from phase5_real_gpu.kernels import TritonPagedKVCache, paged_decode, paged_prefill, write_kv
from phase5_real_gpu.kernels.split_rule import choose_splits
from phase5_real_gpu.kernels.triton_setup import HAS_TRITON, INTERPRETED, card_problem
from phase5_real_gpu.ladder.counted_loads import expected, random_step
from phase5_real_gpu.ladder.ladder_rungs import Shape
from phase5_real_gpu.story.ladder_figures import H100_PROGRAMS

BLOCK = 16
TILE = 64


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
    lab.say("""Four requests: one far into its text, a fresh prompt, one with a single token, and a chunk of a
        prompt behind a prefix. Their blocks are scattered, everything else in the memory is NaN, and after
        the end of each block table comes the number of a block that does not exist.""")
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
    lab.say(f"""Cutting makes more programs. Too few, and multiprocessors idle; too many, and merging and half-empty last
        rounds cost more than they bring. `kernels/split_rule.py` counts rounds: programs, divided by what runs at a
        time ({H100_PROGRAMS} on an H100), rounded up, times the tokens of a split. It takes the fewest splits that
        reach at least 85% of the best speed.""")
    alone = choose_splits([32768], heads, H100_PROGRAMS, TILE)
    lab.predict(
        claim="splits-one-user",
        question=f"one user with 32,768 tokens, {heads} KV heads, {H100_PROGRAMS} programs at a time: splits",
        predicted=43,
        measured=alone.num_splits,
        note=f"{H100_PROGRAMS} / {heads} = 49 splits would fit into one round; in whole tiles of {TILE} the shortest round "
        "is 704 tokens. 85% of that speed allows rounds of up to 828 tokens: 768, and 43 splits are enough.",
    )
    crowd = choose_splits([4096] * 64, heads, H100_PROGRAMS, TILE)
    lab.predict(
        claim="splits-many-users",
        question="64 users with 4,096 tokens each: splits",
        predicted=2,
        measured=crowd.num_splits,
        note=f"{64 * heads} programs are two rounds, the second nearly empty. Cut in two they are three rounds half as long.",
    )
    cases = {
        "1 user x 32,768": [32768],
        "4 users x 8,192": [8192] * 4,
        "64 users x 4,096": [4096] * 64,
        "96 users x 4,096": [4096] * 96,
        "1 user x 32,768 and 63 x 512": [32768] + [512] * 63,
    }
    lab.say("""The figure holds more cases. One long context among short ones shows why splits are counted for each
        request: uncut, it would keep eight programs busy long after all others are done.""")
    lab.figure(draw_splits(cases, heads), "how_many_splits")


def draw_splits(cases: dict[str, list[int]], heads: int):
    fig, (ax,) = new_figure(
        "One request needs dozens of splits, 96 requests need none",
        f"Time of one layer's decode attention by the rule's count, not timed; {heads} KV heads, {H100_PROGRAMS} programs at a time (H100)",
        size=(7.2, 4.8),
    )
    for (name, lens), color in zip(cases.items(), (BLUE, ORANGE, TEAL, PURPLE, YELLOW)):
        tiles = -(-max(lens) // TILE)
        splits = np.arange(1, min(tiles, 128) + 1)
        sizes = -(-tiles // splits) * TILE
        programs = heads * (-(-np.array(lens)[:, None] // sizes)).sum(axis=0)
        time = -(-programs // H100_PROGRAMS) * sizes
        ax.plot(splits, time / time[0], color=color, linewidth=1.6, label=name)
        chosen = choose_splits(lens, heads, H100_PROGRAMS, TILE).num_splits
        ax.plot(chosen, time[chosen - 1] / time[0], "o", color=color, markersize=9, markeredgecolor="white")
    ax.plot([], [], "o", color=GREY, markersize=9, label="chosen by the rule")
    ax.set(xscale="log", yscale="log", xlabel="splits of the longest context", ylabel="time, uncut = 1")
    ticks = [1, 2, 4, 8, 16, 32, 64, 128]
    ax.set_xticks(ticks, [str(t) for t in ticks])
    ax.set_yticks([0.03, 0.1, 0.3, 1], ["0.03", "0.1", "0.3", "1"])
    ax.minorticks_off()
    ax.legend(loc="lower left")
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
    lab.say(f"""`TritonPagedKVCache` takes the place of `PagedKVCache`. Model, scheduler and sampler do not notice.
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
