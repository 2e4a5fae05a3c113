"""Chapters of paged_attention_lab.py: the implementations compared, and the time of each."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.ticker import LogLocator
from torch import Tensor

from labkit.figures import BLUE, MUTED, ORANGE, YELLOW, new_figure, plain_numbers
from labkit.lab import Lab
from phase1_tokens_embeddings.weights import CARDS, GB, SHAPES, kv_per_token, weight_bytes
from phase2_attention_kvcache.model import ModelConfig
from phase2_attention_kvcache.model.attention import attention
from phase3_paged_attention.paging import (
    PagedKVCache,
    StepLayout,
    compiled_kernel,
    pad_tables,
    paged_attention_loops,
    paged_attention_vectorised,
)
from phase3_paged_attention.story.decode_timing import BLOCK, DecodeTimer, DecodeTimes

# ---------------------------------------------------------------------- the same answer, three times

# (tokens computed before, new tokens): two single tokens, a fresh prompt, a chunk of a prompt, a new token.
REQUESTS = [(37, 1), (0, 23), (50, 1), (16, 12), (0, 1)]


def ragged_step(config: ModelConfig, dtype: torch.dtype, device: str, seed: int):
    """A step of REQUESTS in blocks scattered at random.

    Returns:
        its layout, and q, keys, values; the last two for all tokens of each request.
    """
    generator = torch.Generator().manual_seed(seed)
    contexts = [before + new for before, new in REQUESTS]
    free = (1 + torch.randperm(40, generator=generator)).tolist()
    tables = [[free.pop() for _ in range(-(-c // BLOCK))] for c in contexts]
    slots = [
        tables[i][t // BLOCK] * BLOCK + t % BLOCK
        for i, (before, new) in enumerate(REQUESTS)
        for t in range(before, before + new)
    ]

    def normal(n: int, heads: int) -> Tensor:
        return torch.randn(n, heads, config.head_dim, generator=generator).to(device, dtype)

    query_lens = [new for _, new in REQUESTS]
    q = normal(sum(query_lens), config.num_heads)
    keys, values = ([normal(c, config.num_kv_heads) for c in contexts] for _ in range(2))
    layout = StepLayout(query_lens, contexts, tables, torch.tensor(slots, device=device))
    return layout, q, keys, values


def run_readings(step: tuple, config: ModelConfig, unused: float) -> dict[str, Tensor]:
    """A `ragged_step` in each implementation, in a memory where every slot that no request has holds `unused`."""
    layout, q, keys, values = step
    out: dict[str, Tensor] = {}
    new_k, new_v = (torch.cat([t[b:] for t, (b, _) in zip(texts, REQUESTS)]) for texts in (keys, values))
    in_place = compiled_kernel() is not None and q.device.type == "cpu"
    for name in ["compiled, in place"] * in_place + ["gathered"]:
        use_kernel = name == "compiled, in place"
        cache = PagedKVCache(config, 41, BLOCK, q.dtype, q.device, use_kernel=use_kernel)
        cache.storage.data.fill_(unused)
        for i, (before, _) in enumerate(REQUESTS):  # what earlier steps computed
            places = torch.arange(before)
            slots = torch.tensor(layout.block_tables[i])[places // BLOCK] * BLOCK + places % BLOCK
            cache.storage.write(0, slots.to(q.device), keys[i][:before], values[i][:before])
        cache.begin_step(layout)
        out[name] = cache.attend(0, q, new_k, new_v)
    # The new tokens are stored as well by now: the other implementations read the same memory.
    tables = torch.from_numpy(pad_tables(layout.block_tables)).to(q.device)
    k_cache, v_cache = cache.storage.data[:, 0]
    lengths = layout.query_lens, layout.context_lens
    out["vectorised"] = paged_attention_vectorised(q, k_cache, v_cache, tables, *lengths)
    k_list, v_list, rows, start = k_cache.tolist(), v_cache.tolist(), [], 0
    for table, n, context in zip(layout.block_tables, *lengths):
        for i in range(n):
            token = q[start + i].tolist()
            rows.append(paged_attention_loops(token, k_list, v_list, table, context - n + i + 1))
        start += n
    out["plain loops"] = torch.tensor(rows, dtype=torch.float64)
    return out


def three_readings(lab: Lab) -> None:
    lab.title("Three implementations, one result")
    # Grouped queries: 4 query heads share 2 KV heads.
    config = ModelConfig("small", "llama", 8, 64, 1, 4, 2, 16, 64, 128, True)
    dtype = getattr(torch, lab.args.dtype)
    step = ragged_step(config, dtype, lab.device, lab.seed)
    layout, q, keys, values = step
    lab.say(f"""Now a typical step of a server: {len(REQUESTS)} requests, {len(q)} new tokens. Some are single
        tokens after a long text, one is a new prompt, one the second part of a prompt. Their
        {sum(map(len, layout.block_tables))} blocks are scattered among 40.""")
    start, plain = 0, []
    for k, v, n in zip(keys, values, layout.query_lens):
        plain.append(attention(q[start : start + n].double(), k.double(), v.double()))
        start += n
    expected = torch.cat(plain).cpu()
    clean = run_readings(step, config, unused=0.0)
    off = {name: float((out.double().cpu() - expected).abs().max()) for name, out in clean.items()}
    limit = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}[lab.args.dtype]
    lab.predict(
        claim="readings-agree",
        question=f"every implementation is within {limit:g} of plain attention in float64, for all "
        f"{expected.numel():,} numbers",
        predicted=True,
        measured=all(d < limit for d in off.values()),
        note="Largest differences: " + ", ".join(f"{name} {d:.0e}" for name, d in off.items()) + ".",
    )
    lab.title("The content of unused slots")
    poisoned = run_readings(step, config, unused=math.nan)
    changed = sum(int((clean[name] != poisoned[name]).sum()) for name in clean)
    slots, used = 41 * BLOCK, sum(layout.context_lens)
    lab.say(f"""Of the memory's {slots} slots these requests use {used}. The others may hold keys of a finished request,
        or any bytes. The worst case is NaN, which turns every sum it enters into NaN.""")
    lab.predict(
        claim="unused-cannot-matter",
        question=f"{slots - used} slots go from 0 to NaN. How many outputs of all implementations change by a bit",
        predicted=0,
        measured=changed,
        note="A mask is not enough: 0 x NaN is NaN. An unused slot must not be read, or its copy must be cleared. "
        "Otherwise one user's overflow enters another user's answer.",
    )


# ---------------------------------------------------------------------- what it costs


def costs(lab: Lab) -> None:
    batch = 8 if lab.quick else 16
    contexts = [64, 256, 1024] if lab.quick else [64, 128, 256, 512, 1024]
    dtype, device = getattr(torch, lab.args.dtype), lab.device
    lab.title(f"The time of each implementation: {batch} requests decode, one layer of GPT-2's shape")
    lab.say("""In a decode step each number of a user's keys and values takes part in one multiplication and one
        addition. So moving bytes can limit the time, and the number of times that each byte is moved matters.""")
    timer = DecodeTimer(batch, contexts[-1], dtype, device, lab.seed)
    progress = lab.progress(contexts, f"timing contexts of 64 to {contexts[-1]:,} tokens")
    times = [timer.measure(context, repeats=3 if lab.quick else 10) for context in progress]
    last = times[-1]
    if last.in_place is None:
        on_cpu = "without numba" if compiled_kernel() is None else "in float16"
        where = "on a GPU" if device == "cuda" else on_cpu
        lab.say(f"""The compiled kernel does not run {where}: blocks are gathered in each step. (For GPUs
            Phase 5 brings a kernel that reads in place.)""")
    attend, name = (
        (last.contiguous, "attending to contiguous rows") if last.in_place is None
        else (last.in_place, "attending in place")
    )  # fmt: skip
    passes, why = 2.0, "The blocks are read, the rows are written."
    if device == "cpu":
        passes = 3.0
        why = "The blocks are read; each line of the rows is fetched before it is overwritten; and it is written."
    lab.predict(
        claim="copy-against-attend",
        question=f"context {last.context:,}: copying the blocks into rows, and nothing else, takes how many times as "
        f"long as {name}",
        predicted=(0.5, 2 * passes),
        between=True,
        measured=round(last.copy / attend, 1),
        unit="x",
        kind="timing",
        note=f"Passes over the memory, against one for attention: {passes:.1f}. {why} The factor is smaller where arithmetic, "
        "not memory, limits the attention.",
    )
    rows = [
        ["gathered, then torch", last.gather],
        ["    only the copy", last.copy],
        ["    only torch, on contiguous rows", last.contiguous],
        ["in place, compiled", last.in_place],
    ]
    lab.table(
        f"One layer, {batch} users, {last.context:,} tokens each: {last.kv_bytes / 1e6:.0f} MB of keys and values",
        ["implementation", "microseconds", "GB/s of keys and values"],
        [[name, s if s is None else 1e6 * s, s if s is None else last.kv_bytes / s / GB] for name, s in rows],
        note=f"In {lab.args.dtype}. GPT-2 has 12 such layers, and each step goes through all of them.",
    )
    lab.record(decode_times=[vars(t) for t in times])
    lab.figure(draw_costs(times, batch, lab.where), "paged_attention_cost")
    in_dollars(lab)


def in_dollars(lab: Lab) -> None:
    shape, card, users, context = SHAPES["llama-3-8b"], CARDS["h100"], 32, 8192
    weights = weight_bytes(shape, "FP16")
    kv = users * context * kv_per_token(shape)
    ms = [1000 * (weights + passes * kv) / (card.bandwidth_gb_s * GB) for passes in (1, 3)]
    lab.say(f"""What it means on a large card: {users} users of Llama-3 8B with {context:,} tokens each keep
        {kv / GB:.1f} GB of keys and values, beside {weights / GB:.1f} GB of weights. An {card.title} moves at most
        {card.bandwidth_gb_s:,} GB per second, so a step takes {ms[0]:.0f} ms or more. If blocks were read, written into
        rows and read again, it would be {ms[1]:.0f} ms or more: at the same rent, each token would cost
        {ms[1] / ms[0]:.1f} times as much.""")


def draw_costs(times: Sequence[DecodeTimes], batch: int, where: str):
    last, known = times[-1], times[-1].in_place is not None
    base = last.in_place or last.contiguous
    fig, (left, right) = new_figure(
        f"Gathering blocks first takes {last.gather / base:.1f} times as long as "
        + ("reading them in place" if known else "reading one contiguous row"),
        f"Attention of one decode step at {last.context:,} tokens: one layer of GPT-2's shape, {batch} requests; {where}",
        panels=2,
    )
    contexts = [t.context for t in times]
    lines = [
        ("gather", "gather, then attend", ORANGE, "o"),
        ("copy", "the copy alone", YELLOW, "s"),
        ("contiguous", "attend, one contiguous row", MUTED, "^"),
    ]
    if known:
        lines.append(("in_place", "attend in place", BLUE, "D"))
    for attribute, label, color, marker in lines:
        seconds = np.array([getattr(t, attribute) for t in times])
        style = dict(marker=marker, color=color, label=label)
        left.plot(contexts, 1e6 * seconds, **style)
        speed = np.array([t.kv_bytes for t in times]) / seconds / GB
        right.plot(contexts, speed, **style)
    left.set(xscale="log", yscale="log", ylabel="microseconds per step", title="Time")
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))  # the times may lie within one power of ten
    right.set(xscale="log", ylim=(0, None), ylabel="GB/s", title="Keys and values read, divided by the time")
    for ax in (left, right):
        ax.set_xlabel("context length of each request, tokens")
        ax.set_xticks(contexts)
        plain_numbers(ax, "xy" if ax is left else "x")
        ax.tick_params(which="minor", axis="x", length=0)
    left.legend(loc="upper left")
    return fig
