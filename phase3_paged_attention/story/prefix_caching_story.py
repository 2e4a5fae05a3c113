"""The chapters of prefix_caching.py."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from labkit.figures import BLUE, GREY, MUTED, ORANGE, new_figure
from labkit.lab import Lab
from labkit.models import find_model
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase1_tokens_embeddings.weights import CARDS, SHAPES
from phase1_tokens_embeddings.weights.gguf_model import load_tokenizer
from phase2_attention_kvcache.model import Transformer
from phase3_paged_attention.paging import BlockTable
from phase3_paged_attention.sharing import RecordingBlockManager
from phase3_paged_attention.story.prefix_server import PrefixServer, common_prefix

TEXT = Path(__file__).parents[2] / "phase1_tokens_embeddings" / "texts" / "prose.txt"
BLOCK = 16
SOURCE_COLD, SOURCE_WARM = 753, 367  # milliseconds, from the article
ENDINGS = [
    "The miller's daughter ran down to the water and",
    "One winter night a stranger came aboard who",
    "The old dog slept under the last seat until",
    "Nobody had ever asked Marten why",
    "In the vineyard they found a letter that",
    "The smallest boy in the boat said to the priest:",
    "That autumn the river rose so high that",
    "A bell rang in the town, and all at once",
    "The baker had brought warm bread for",
    "When the fog came down they heard",
    "The two sisters counted their coins and",
    "On the seventh day the boat was empty, so",
]


def load(lab: Lab) -> tuple[Transformer, BPETokenizer]:
    model = Transformer.from_pretrained(lab.args.model, lab.args.dtype, lab.device)
    tokenizer = load_tokenizer(find_model(lab.args.model))
    if model.config.max_context < 512:
        raise ValueError(f"{lab.args.model} has a context of {model.config.max_context}: 512 are needed here")
    return model, tokenizer


def long_text(tokenizer: BPETokenizer, num_tokens: int) -> list[int]:
    """Exactly this many tokens of a story, from its beginning; over again if it is too short."""
    ids = tokenizer.encode(TEXT.read_text(encoding="utf-8"))
    return (ids * (num_tokens // len(ids) + 1))[:num_tokens]


# ---------------------------------------------------------------------- one prompt, many users


def many_users(lab: Lab, model: Transformer, tokenizer: BPETokenizer) -> None:
    lab.title("One long beginning, many users")
    shared = long_text(tokenizer, 390)
    endings = ENDINGS[:6] if lab.quick else ENDINGS
    prompts = [shared + tokenizer.encode("\n\n" + ending) for ending in endings]
    new = 4 if lab.quick else 12
    lab.say(f"""The first {len(shared)} tokens of a story are the same for all, as a system prompt would be.
        {len(prompts)} readers add a sentence of their own, and the model writes {new} tokens for each. Twice: on a
        server without a prefix cache, and on one with it.""")
    cold = PrefixServer(model, 80, BLOCK, enable_prefix_caching=False)
    warm = PrefixServer(model, 80, BLOCK)
    cold.serve([1] * len(shared), 2)  # the first run of everything is slow
    warm.serve([1] * len(shared), 2)
    warm.manager.begin_recording()
    progress = lab.progress(prompts, "readers, each served twice")
    pairs = [(cold.serve(p, new), warm.serve(p, new)) for p in progress]
    whole = len(shared) // BLOCK * BLOCK
    lab.predict(
        claim="prefix-hits",
        question=f"{len(shared)} tokens are shared, blocks have {BLOCK}. How many does the first reader find in the "
        "cache, how many each later one",
        predicted=[0, whole],
        measured=[pairs[0][1].hit_tokens, min(w.hit_tokens for _, w in pairs[1:])],
        note=f"Only full blocks have a hash: {len(shared)} = {whole // BLOCK} x {BLOCK} + {len(shared) - whole}.",
    )
    lab.predict(
        claim="prefix-hit-rate",
        question="hit rate: share of all prompt tokens that were found",
        predicted=(len(prompts) - 1) * whole / sum(map(len, prompts)),
        measured=(hits := warm.manager.stats.hit_tokens / sum(map(len, prompts))),
        tolerance=1e-9,
        note="With more readers it approaches the shared part of a prompt.",
    )
    same = sum(c.token_ids == w.token_ids for c, w in pairs)
    lab.predict(
        claim="prefix-same-tokens",
        question=f"of {len(prompts)} readers, how many get the very same tokens from both servers",
        predicted=len(prompts),
        measured=same,
        # In 16 bits two favourites may tie, and the order of additions decides.
        kind="structure" if model.dtype == torch.float32 else "timing",
        note="A cache may change the time. It may never change the answer.",
    )
    computed = [sum(served[i].computed_tokens for served in pairs) for i in (0, 1)]
    ttft = [1000 * statistics.median(served[i].ttft for served in pairs[1:]) for i in (0, 1)]
    lab.table(
        f"{len(prompts)} readers", ["server", "tokens computed", "median TTFT, ms (all but the first reader)"],
        [["without", computed[0], ttft[0]], ["with prefix cache", computed[1], ttft[1]]],
    )  # fmt: skip
    lab.record(computed_tokens=computed, median_ttft_ms=ttft, hit_rate=hits)
    what_it_saves(lab, whole)


def what_it_saves(lab: Lab, tokens: int) -> None:
    shape, card, requests, teraflops = SHAPES["llama-3-8b"], CARDS["h100"], 1_000_000, 400
    operations = 2 * shape.num_parameters * tokens * requests
    hours = operations / (teraflops * 1e12) / 3600
    lab.say(f"""What it saves: a service with {requests:,} requests per day and {tokens} shared tokens does not compute
        {tokens * requests / 1e6:.0f} million tokens per day. For Llama-3 8B, at 2 operations per parameter and token and
        {teraflops} x 10^12 operations per second (an {card.title} reaches about that with long prompts), these are
        {hours:.1f} hours of the card: {hours * card.dollars_per_hour:.0f} dollars per day at
        {card.dollars_per_hour:.2f} per hour.""")


# ---------------------------------------------------------------------- TTFT against the shared part


def measure_ttft(
    cold: PrefixServer,
    warm: PrefixServer,
    num_tokens: int,
    shared: int,
    repeats: int,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Seconds to the first token, cold and warm: the fastest of a few. Ends are new each time."""
    vocabulary = warm.model.config.vocab_size
    beginning = rng.integers(0, vocabulary, shared).tolist()
    times: list[tuple[float, float]] = []
    warm.serve([*beginning, 0])
    for _ in range(repeats):
        prompt = beginning + rng.integers(0, vocabulary, num_tokens - shared).tolist()
        times.append((cold.serve(prompt).ttft, warm.serve(prompt).ttft))
    return min(c for c, _ in times), min(w for _, w in times)


def share_that_gives(ratio: float, shares: Sequence[float], ratios: Sequence[float]) -> float:
    """Where the measured curve comes down to `ratio`, along straight lines between its points."""
    falling = np.minimum.accumulate(ratios)
    return float(np.interp(-ratio, -falling, shares))


def ttft_against_share(lab: Lab, model: Transformer) -> None:
    n, repeats = (512, 2) if lab.quick else (896, 4)
    n = min(n, model.config.max_context // 128 * 128 - 128)  # so that most shares are whole blocks
    steps = [0, 1 / 4, 1 / 2, 3 / 4, 15 / 16] if lab.quick else [0, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 15 / 16]  # fmt: skip
    counts = [int(f * n) // BLOCK * BLOCK for f in steps]
    lab.title("TTFT, cold and warm")
    lab.say(f"""Prompts of {n} tokens that share a part with an earlier one, from nothing to nearly all. If the
        time is proportional to the tokens computed, warm / cold is 1 minus the shared part.""")
    rng = lab.rng()
    room = 4 * n // BLOCK
    pair = (PrefixServer(model, room, BLOCK, False), PrefixServer(model, room, BLOCK))
    for server in pair:
        server.serve([1] * n)
    progress = lab.progress(counts, "timing prompts with a growing shared part")
    times = [measure_ttft(*pair, n, shared, repeats, rng) for shared in progress]
    shares, ratios = [c / n for c in counts], [warm / cold for cold, warm in times]
    ratio = SOURCE_WARM / SOURCE_COLD
    at = share_that_gives(ratio, shares, ratios)
    expected = shares[-1] * (1 - ratio) / (1 - ratios[-1])  # on a straight line down to the last point
    lab.predict(
        claim="prefix-ttft",
        question=f"the source's TTFT falls from {SOURCE_COLD} to {SOURCE_WARM} ms, to {100 * ratio:.0f}%. Which part of a "
        "prompt has to be shared for that",
        predicted=round(expected, 3),
        measured=round(at, 3),
        tolerance=0.2,
        kind="timing",
        note="Predicted from this run: the time that no cache saves is the same at every share, so a straight line leads from 100% "
        f"to the last figure. Without such a rest it would be {1 - ratio:.3f}. So the source's figure says how much "
        "of one prompt was shared, and nothing about prefix caching as such: with "
        f"nothing shared we measure {100 * ratios[0]:.0f}%, with {100 * shares[-1]:.0f}% shared {100 * ratios[-1]:.0f}%.",
    )
    lab.table(
        f"Prompts of {n} tokens", ["shared part %", "tokens computed", "cold, ms", "warm, ms", "warm / cold"],
        [[100 * s, n - c, 1000 * cold, 1000 * warm, r] for s, c, (cold, warm), r in zip(shares, counts, times, ratios)],
        note="The last token is always computed. And what a step costs besides its tokens (reading the weights, "
        "starting each operation) no cache takes away: that is what is left at the end.",
    )  # fmt: skip
    cold, warm = zip(*times)
    lab.record(ttft=dict(shares=shares, cold=cold, warm=warm, share_of_source=at))
    lab.figure(draw_ttft(shares, ratios, at, n, f"{lab.args.model}; {lab.where}"), "prefix_ttft")


def draw_ttft(shares: Sequence[float], ratios: Sequence[float], at: float, n: int, where: str):
    ratio = SOURCE_WARM / SOURCE_COLD
    fig, (ax,) = new_figure(
        "The more of a prompt is shared, the shorter the time to first token",
        f"Prompts of {n} tokens, warm divided by cold cache; {where}",
    )
    dashes = dict(color=GREY, linestyle="--", linewidth=1.5)
    ax.plot([0, 100], [1, 0], label="if time were proportional to tokens", **dashes)
    ax.plot(100 * np.array(shares), ratios, marker="o", color=BLUE, label="measured TTFT")
    ax.plot([0, 100 * at, 100 * at], [ratio, ratio, 0], color=ORANGE, linewidth=1.2, linestyle=":")
    ax.annotate(
        f"Raghavan's {SOURCE_COLD} -> {SOURCE_WARM} ms:\na prompt shared to {100 * at:.0f}%", (100 * at, ratio),
        xytext=(14, 22), textcoords="offset points", color=ORANGE,
        arrowprops=dict(arrowstyle="-", color=ORANGE, linewidth=1),
    )  # fmt: skip
    ax.set(xlabel="shared part of the prompt, %", ylabel="TTFT warm / cold")
    ax.set(xlim=(0, 100), ylim=(0, max(1.15, *ratios)))
    ax.legend(loc="lower left")
    return fig


# ---------------------------------------------------------------------- one changed letter


def one_letter(lab: Lab, model: Transformer, tokenizer: BPETokenizer) -> None:
    lab.title("One changed letter")
    text = tokenizer.decode(long_text(tokenizer, 400))
    ids = tokenizer.encode(text)
    places = {"at the front": 0, "in the middle": len(text) // 2, "near the end": len(text) - 100}
    lab.say(f"""A text of {len(ids)} tokens is in the cache. It comes again with a single letter changed.""")
    rows, predicted, measured = [], [], []
    for name, place in places.items():
        place = next(i for i in range(place, len(text)) if text[i].isalpha())
        changed = text[:place] + ("x" if text[place] != "x" else "y") + text[place + 1 :]
        other = tokenizer.encode(changed)
        server = PrefixServer(model, 80, BLOCK)
        server.serve(ids)
        served = server.serve(other)
        same = common_prefix(ids, other)
        predicted.append(same // BLOCK * BLOCK)
        measured.append(served.hit_tokens)
        rows.append([name, f"...{changed[max(0, place - 12) : place + 8]}...".replace("\n", " "), same,
                     served.hit_tokens, served.computed_tokens])  # fmt: skip
    lab.predict(
        claim="prefix-one-letter",
        question=f"of {len(ids)} tokens, how many are found when the changed letter stands at the front / in the middle "
        "/ near the end",
        predicted=predicted,
        measured=measured,
        note="A block hash is of its tokens and of the hash before it. One different token changes "
        "its block's hash and all later ones: the keys and values after it differ, too.",
    )
    columns = ["where", "text there", "equal tokens", "found", "computed"]
    lab.table("The same text with one letter changed", columns, rows)
    lab.say("""So put the part that changes at the end. A system prompt that begins with the time of day, or with the
        user's name, shares nothing with any other.""")


# ---------------------------------------------------------------------- when memory is short


def memory_is_short(lab: Lab, model: Transformer, tokenizer: BPETokenizer) -> None:
    lab.title("When memory is short")
    text = long_text(tokenizer, 640)
    alice, bob = text[:320], text[320:]
    blocks, usable = 320 // BLOCK, 30
    server = PrefixServer(model, usable + 1, BLOCK)
    lab.say(f"""Two tenants, each with a prompt of {blocks} blocks, share a cache of {usable}. Alice's prompt comes, then
        Bob's, then Alice's again.""")
    server.serve(alice)
    server.serve(bob)
    again = server.serve(alice)
    lab.predict(
        claim="prefix-eviction",
        question=f"how many of Alice's {len(alice)} tokens are still there",
        predicted=(usable - blocks) * BLOCK,
        measured=again.hit_tokens,
        note=f"Bob needed {blocks} blocks. {usable - blocks} had never been used, the others came from Alice, who had "
        "waited longest: from the end of her text, so that what is left is a beginning and can be used.",
    )
    tenants, turns = 8, 160 if lab.quick else 400
    sizes = list(range(20, tenants * 20 + 60, 20 if lab.quick else 10))
    rng = lab.rng()
    shares = 1 / np.arange(1, tenants + 1)
    orders = {
        "in turn": [i % tenants for i in range(turns)],
        "at random, all alike": rng.integers(0, tenants, turns).tolist(),
        "at random, some far more often": rng.choice(tenants, turns, p=shares / shares.sum()).tolist(),
    }
    rates = {name: [hit_rate(order, 20, size) for size in sizes] for name, order in orders.items()}
    tight = sizes.index(140)
    lab.predict(
        claim="prefix-lru-cliff",
        question=f"now {tenants} tenants with prompts of 20 blocks come in turn, each with one new block; they need "
        f"{tenants * 21} blocks, the cache has 140. Hit rate",
        predicted=0.0,
        measured=rates["in turn"][tight],
        note="LRU evicts the prefix that was unused for longest, which is the one that arrives next. A cache that is "
        "slightly too small for a cycle has no hits. Traffic with a few frequent prefixes does better.",
    )
    lab.table(
        f"{tenants} tenants with a prompt of 20 blocks each: hit rate, %",
        ["they arrive", *(f"{s} blocks" for s in (60, 100, 140, 180))],
        [[name, *(100 * r[sizes.index(s)] for s in (60, 100, 140, 180))] for name, r in rates.items()],
        note="Each request adds one block of its own. Only the block manager runs here, no model.",
    )
    lab.figure(draw_hit_rates(sizes, rates, 21 * tenants, tight), "prefix_hit_rate")


def hit_rate(order: Sequence[int], prompt_blocks: int, cache_blocks: int) -> float:
    """Hit rate when tenants come in this order, each with its own prompt and one block that is new."""
    manager, looked_up = RecordingBlockManager(cache_blocks + 1, BLOCK), 0
    for turn, tenant in enumerate(order):
        first = tenant * 10_000
        ids = [*range(first, first + prompt_blocks * BLOCK), *range(-(turn + 1) * BLOCK, -turn * BLOCK)]
        table = BlockTable()
        if not manager.allocate(table, ids, len(ids), manager.match_prefix(table, ids)):
            return 0.0  # not even one request fits
        looked_up += len(ids)
        manager.free(table)
    return manager.stats.hit_tokens / looked_up


def draw_hit_rates(sizes: Sequence[int], rates: dict[str, list[float]], needed: int, tight: int):
    in_turn, skewed = rates["in turn"], rates["at random, some far more often"]
    fig, (ax,) = new_figure(
        f"The order of arrivals decides: {100 * in_turn[tight]:.0f}% or {100 * skewed[tight]:.0f}% hits with {sizes[tight]} blocks",
        "8 prefixes of 20 blocks each; each request adds one block of its own; LRU eviction",
        size=(7.2, 4.6),
    )
    for (name, rate), color in zip(rates.items(), (ORANGE, MUTED, BLUE)):
        ax.plot(sizes, 100 * np.array(rate), marker="o", markersize=3.5, color=color, label=name)
    ax.axvline(needed, color=MUTED, linewidth=1, linestyle=":")
    ax.text(needed + 2, 3, "all prefixes fit", color=MUTED)
    ax.set(xlabel="blocks in the cache", ylabel="hit rate, %", ylim=(0, 100))
    fig.legend(title="prefixes arrive", loc="outside lower center", ncols=3, fontsize=9.5)
    return fig
