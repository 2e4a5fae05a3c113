"""The chapters of the story of positions."""

from __future__ import annotations

import math

import torch

from labkit.lab import Lab
from phase1_tokens_embeddings.weights.memory_math import kv_bytes_per_token
from phase2_attention_kvcache.model.positions import (
    apply_rotary,
    apply_rotary_interleaved,
    rotary_frequencies,
    rotary_tables,
    to_half_split,
)


def _spread(scores: torch.Tensor) -> float:
    """How much a score changes with the place, beside how much it changes with the distance."""
    return (scores.std(0).mean() / scores.mean(0).std()).item()


def clocks_story(lab: Lab) -> None:
    lab.title("Rotary: a clock with many hands")
    lab.say("""Rotary encoding reads a head's numbers two at a time, as points in a plane, and turns each
        point further with every position. The first pair is a fast hand, the last one hardly moves.
        Together they show a position like second, minute and hour hands show a time.""")
    frequencies = rotary_frequencies(64)
    lab.table(
        "A head of 64 numbers, theta 10,000",
        ["pair", "degrees a token", "tokens for a full turn"],
        [
            [i, math.degrees(frequencies[i]), 2 * math.pi / frequencies[i].item()]
            for i in (0, 1, 8, 16, 24, 31)
        ],
    )
    q, k = torch.randn(2, 1, 1, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(lab.seed))
    cos, sin = rotary_tables(2048, rotary_frequencies(64).double(), torch.float64)

    def score(m: int, n: int) -> float:
        turned_q = apply_rotary(q, cos[[m]], sin[[m]])
        turned_k = apply_rotary(k, cos[[n]], sin[[n]])
        return (turned_q * turned_k).sum().item()

    here, there, other = score(5, 2), score(1005, 1002), score(5, 4)
    lab.predict(
        claim="rope-relative",
        question=f"a query at 5 and a key at 2 score {here:.4f}; the same two at 1005 and 1002",
        predicted=here,
        measured=there,
        tolerance=1e-6,
        note=f"The distance is 3 both times. At distance 1 (5 and 4) the score is {other:.4f}.",
    )


def layout_story(lab: Lab) -> None:
    lab.title("Two layouts of the same thing")
    x = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(lab.seed))
    cos, sin = (t[torch.tensor([3, 70, 900])] for t in rotary_tables(1024, rotary_frequencies(8)))
    order = to_half_split(8)
    lab.predict(
        claim="rope-layouts",
        question="reorder, then turn halves = turn neighbours, then reorder",
        predicted=True,
        measured=torch.equal(
            apply_rotary(x[..., order], cos, sin), apply_rotary_interleaved(x, cos, sin)[..., order]
        ),
        note="The order is " + " ".join(map(str, order.tolist())) + ". Weights read in the wrong layout "
        "give wrong answers and no error.",
    )


def long_context_story(lab: Lab) -> None:
    from phase2_attention_kvcache.story.positions_compared import LLAMA31

    lab.title("A longer context")
    lab.say("""A learned table ends: GPT-2 has 1,024 rows and no row 1,024. A rotary angle can be computed
        for any position, but a slow hand then comes to angles that it never showed in training, and the
        model does not know them. Llama 3.1 was trained on 8,192 tokens first. On the way to 131,072 its
        slow hands were slowed down by 8, so that far positions look more like angles it has seen, and it
        was trained on with long texts. The fast hands, which tell neighbours apart, stay.""")
    plain = rotary_frequencies(128, 500_000.0)
    scaled = rotary_frequencies(128, 500_000.0, LLAMA31)
    slower_by = (plain / scaled).tolist()
    # Pair i turns once in 2 pi theta^(i / 64) tokens. That is less than L tokens if i is below this:
    below_2048, below_8192 = (
        64 * math.log(length / (2 * math.pi)) / math.log(500_000) for length in (2048, 8192)
    )
    lab.predict(
        claim="rope-llama3",
        question="Llama 3.1, 64 pairs: how many stay, lie between, are slowed down by 8",
        predicted=[
            math.ceil(below_2048),
            math.ceil(below_8192) - math.ceil(below_2048),
            64 - math.ceil(below_8192),
        ],
        measured=[
            sum(x == 1 for x in slower_by),
            sum(1 < x < 7.999 for x in slower_by),
            sum(x >= 7.999 for x in slower_by),
        ],
        note="Stay: a turn in under 2,048 tokens (4 turns in 8,192). Slowed down: not one turn in 8,192.",
    )
    per_token = kv_bytes_per_token(num_layers=32, num_kv_heads=8, head_dim=128)  # in 16 bits
    lab.say(f"""What it costs: positions are nearly free, the tokens at them are not. A full context of
        131,072 tokens holds {131072 * per_token / 2**30:.0f} GiB of keys and values in Llama 3.1 8B, about
        as much as its weights. One such user takes the room of 16 users with 8,192 tokens.""")
