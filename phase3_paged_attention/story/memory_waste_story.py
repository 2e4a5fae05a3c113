"""The chapters of the story of wasted memory."""

from collections.abc import Sequence

import numpy as np

from labkit.lab import Lab
from phase3_paged_attention.paging import BlockAllocator
from phase3_paged_attention.story.memory_policies import (
    POLICIES,
    ContiguousAllocator,
    fill_blocks,
    requests_that_fit,
    rows_that_fit,
    simulate,
)
from phase3_paged_attention.traffic import PATTERNS

# The article gives the sums, 3,765 tokens in 237 blocks, and not the lengths. These ten have the same sums.
TEN_REQUESTS = (44, 81, 126, 190, 256, 318, 400, 512, 750, 1088)
CONTEXT = 2048  # slots that a contiguous engine reserves for a request
POOL = 4 * CONTEXT  # room for four such requests


def slots_allocated(lengths: Sequence[int], block_size: int) -> int:
    """Slots that the real block manager gives to requests of these lengths."""
    tables = fill_blocks(lengths, sum(-(-n // block_size) for n in lengths), block_size)
    return block_size * sum(len(table.blocks) for table in tables)


def ten_requests(lab: Lab) -> None:
    lab.title("Ten requests, stored both ways")
    used = sum(TEN_REQUESTS)
    rows = ContiguousAllocator(len(TEN_REQUESTS) * CONTEXT)
    for _ in TEN_REQUESTS:
        rows.allocate(CONTEXT)
    contiguous = rows.num_slots - rows.num_free
    paged = slots_allocated(TEN_REQUESTS, 16)
    lab.say(f"""Ten requests hold {used:,} tokens: {", ".join(f"{n:,}" for n in TEN_REQUESTS)}. (The article gives the
        sums only; these lengths are ours, chosen to have the same.) A slot is room for one token. Contiguous:
        {CONTEXT:,} slots for each. Paged: blocks of 16.""")
    lab.predict(
        claim="waste",
        question="slots allocated and never used: contiguous, paged",
        predicted=[10 * CONTEXT - used, sum(-n % 16 for n in TEN_REQUESTS)],
        measured=[contiguous - used, paged - used],
        source_says=[16715, 27],
    )
    lab.table(
        "Slots",
        ["", "allocated", "used", "wasted", "wasted, %"],
        [[name, slots, used, slots - used, 100 * (slots - used) / slots]
         for name, slots in (("contiguous", contiguous), ("paged", paged))],
    )  # fmt: skip
    lab.say("""27 is unusually low. A request leaves 0 to 15 slots of its last block empty, 7.5 on average: 75 for
        ten. Expect 2% here, not 0.7. Compared with 82% that is little.""")

    worst, mean = {}, {}
    for size in (1, 16, 256):
        waste = [slots_allocated([n], size) - n for n in range(1, 513)]
        worst[size], mean[size] = max(waste), float(np.mean(waste))
    lab.predict(
        claim="waste-bound",
        question="most slots that a request wastes, of any length from 1 to 512, in blocks of 1, 16, 256",
        predicted=[size - 1 for size in worst],
        measured=list(worst.values()),
        note=f"Always under one block. On average {mean[16]:.1f} and {mean[256]:.0f}: half a block.",
    )


def four_become_26(lab: Lab, rng: np.random.Generator) -> np.ndarray:
    """Returns lengths of requests of which 26 fit the pool."""
    lab.title("26 requests instead of four")
    num_blocks = POOL // 16
    lab.say(f"""A pool of {POOL:,} slots: four rows of {CONTEXT:,}, or {num_blocks} blocks of 16. The article does not say how
        long its requests are. From 289 to 304 tokens, 19 blocks, give its figure. Let us take 300.""")
    lab.predict(
        claim="concurrency",
        question="requests of 300 tokens at a time in the same memory: contiguous, paged",
        predicted=[POOL // CONTEXT, num_blocks // -(-300 // 16)],
        measured=[rows_that_fit(POOL, CONTEXT), requests_that_fit([300] * 200, num_blocks, 16)],
        note="6.5 times as many: about the reserved length divided by the allocated one, 2,048 / 304.",
    )
    rows = []
    for mean in (75, 150, 300, 600, 1024, 2048):
        drawn = [rng.integers(mean // 3, min(CONTEXT, 5 * mean // 3) + 1, 400) for _ in range(20)]
        counts = [requests_that_fit(n, num_blocks, 16) for n in drawn] if mean < CONTEXT else [4]
        same = requests_that_fit([mean] * 400, num_blocks, 16)
        rows.append([mean, same, same / 4, f"{min(counts)} to {max(counts)}" if mean < CONTEXT else "4"])
    again = [requests_that_fit(rng.permutation(TEN_REQUESTS * 10), num_blocks, 16) for _ in range(20)]
    lab.table(
        f"Requests at a time in {POOL:,} slots (contiguous: 4, whatever they are)",
        ["tokens each", "paged", "times as many", "paged, if lengths vary by a factor of 5"],
        rows,
        note=f"Requests like the ten above (376 tokens on average): {min(again)} to {max(again)} at a time. Short requests "
        "gain much. Requests that fill their row gain nothing.",
    )
    while True:  # lengths for the picture, of which just 26 fit
        lengths = rng.integers(100, 501, 40)
        if requests_that_fit(lengths, num_blocks, 16) == 26:
            return lengths


def which_traffic(lab: Lab, rng: np.random.Generator) -> None:
    lab.title("Which traffic gains 2 to 4 times?")
    lab.say("""It depends on how well the reserved row fits. Give contiguous memory its best chance: the row is
        as long as the longest request of this kind of traffic, and no longer. Then give it what an engine
        really knows when a request comes: the context of the model, 8,192 tokens for Llama-3 8B.""")
    gains: dict[str, dict[str, float]] = {}
    pool = 32 * 8192
    for name, pattern in PATTERNS.items():
        drawn = [pattern.total_lengths(rng, 4000) for _ in range(8)]
        paged = np.mean([requests_that_fit(lengths, pool // 16, 16) for lengths in drawn])
        gains[name] = dict(
            longest=pattern.max_tokens,
            mean=float(pattern.total_lengths(rng, 20_000).mean()),
            best=float(paged) / rows_that_fit(pool, pattern.max_tokens),
            context=float(paged) / rows_that_fit(pool, 8192),
        )
    named = ("chat", "summarisation", "code", "mixed")
    means = [125 + 300, 3000 + 200, 350 + 1250]  # the middles of the article's ranges
    means.append(sum(means) / 3)
    lab.predict(
        claim="paged-2-4x",
        question="times as many requests at a time (row: the longest of its kind): chat, summarisation, code, mixed",
        predicted=[round(PATTERNS[name].max_tokens / (mean + 7.5), 2) for name, mean in zip(named, means)],
        measured=[round(gains[name]["best"], 2) for name in named],
        source_says="2 to 4",
        tolerance=0.12,
        note="The gain is the reserved length divided by the mean length. It is 2 to 4 where few requests are as "
        "long as the longest.",
    )
    lab.table(
        "Requests at a time, paged / contiguous",
        ["traffic", "longest", "mean tokens", "row: the longest", "row: context 8,192"],
        [[name, g["longest"], round(g["mean"]), g["best"], g["context"]] for name, g in gains.items()],
        note="chat, summarisation, code: the article's lengths.",
    )


def memory_at_work(lab: Lab, rng: np.random.Generator) -> dict:
    lab.title("A simulated server: where contiguous memory goes")
    pattern, pool, steps = PATTERNS["long tail"], 32 * 1024, 5000 if lab.quick else 20_000
    lab.say("""Requests keep arriving, generate one token per step, and finish. Rows of different
        lengths are allocated and freed, and gaps appear that are too short for the next row. Four ways to do it: a row for
        the longest request; a row that guesses the answer's length to a factor of 2; an oracle that knows it
        exactly; and blocks of 16.""")
    shares = {
        policy: simulate(policy, pattern, pool, np.random.default_rng(lab.seed), steps)
        for policy in lab.progress(POLICIES, "simulating")
    }
    prompts, answers = pattern.draw(rng, 100_000)
    # Each request holds its row for as many steps as its answer is long; half of the answer is there on average.
    theory = 1 - float((answers * (prompts + answers / 2)).sum() / (answers * pattern.max_tokens).sum())
    lab.predict(
        claim="contiguous-60-80",
        question="share of the memory that holds no token, a row for the longest request",
        predicted=theory,
        measured=1 - shares["longest"].used,
        tolerance=0.06,
        note="A request is there for as long as it writes, so long answers count for more. The vLLM authors found 60 to 80% wasted in the engines of 2023.",
    )
    lab.predict(
        claim="paged-4-percent",
        question="paged memory wastes under 4%",
        predicted=True,
        measured=1 - shares["paged"].used < 0.04,
        note=f"{100 * (1 - shares['paged'].used):.1f}%: half a block for each of {shares['paged'].running:.0f} requests, and the few "
        "blocks that are free while the next prompt needs more.",
    )
    lab.table(
        "Shares of the memory, %, and requests at a time",
        ["", "tokens", "reserved", "internal", "external", "requests"],
        [[name, *(100 * x for x in (s.used, s.reserved, s.internal, s.external)), s.running]
         for name, s in shares.items()],
        note="reserved: used later. internal: part of the row, never used. external: gaps between rows. Even the "
        f"oracle fills only {100 * shares['oracle'].used:.0f}%: it has to keep room for tokens that do not exist yet.",
    )  # fmt: skip
    return shares


def block_sizes(lab: Lab, rng: np.random.Generator) -> None:
    lab.title("How large should a block be?")
    pool, context = (32 if lab.quick else 128) * 1024, 8192
    lengths = PATTERNS["chat"].total_lengths(rng, 3000)
    rows = []
    for size in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        allocated = (-(-lengths // size) * size).sum()
        wasted = 100 * (1 - float(lengths.sum() / allocated))
        fit = requests_that_fit(lengths, pool // size, size)
        rows.append([size, wasted, fit, context // size, 4 * context / size / 1024])
    lab.table(
        "Chat: blocks of several sizes",
        ["block size", "wasted, %", "requests at a time", "blocks of 8,192 tokens", "their table, KiB"],
        rows,
        note="Each block is an entry in the table, 4 bytes, that a kernel looks up in every layer before it can read "
        "a key; and one more block to allocate, hash and free.",
    )
    lab.say("""16 is vLLM's compromise. A kernel has to look up each block before it can load a key from it (Kwon et al.,
        section 7.2), so small blocks cost time; large ones leave slots empty, and two prompts share whole blocks only.""")


def constant_time(lab: Lab) -> None:
    lab.title("Taking a block out of a list of a thousand, and of a hundred thousand")
    lab.predict(
        claim="o1-alloc",
        question="one block is removed from the middle of a free list of 1,000, and of 100,000. Blocks that change",
        predicted=[3, 3],
        measured=[links_changed(1000), links_changed(100_000)],
        note="The block itself and its two neighbours. A deque would have to search for it.",
    )


def links_changed(num_blocks: int) -> int:
    """How many blocks notice that one is taken out of the middle of a free list of this length."""
    allocator = BlockAllocator(num_blocks)
    before = [(b.previous, b.next) for b in allocator.blocks]
    allocator.remove(allocator.blocks[num_blocks // 2])
    return sum(old != (b.previous, b.next) for old, b in zip(before, allocator.blocks, strict=True))
