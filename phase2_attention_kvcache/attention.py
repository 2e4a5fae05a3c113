"""Attention: how each token gathers what it needs from the tokens before it.

Each token asks a question (its query q), shows a label (its key k) and carries a content (its value v).
A token compares its query with the keys of all tokens up to itself, turns the scores into shares that
add up to 1, and takes the mixture of their values in these shares:

    out = softmax(q k^T / sqrt(head_dim)) v

You will follow three words by hand, split vectors into heads, see what grouped queries save, and look at
what the heads of a real model look at (--layer, --text).

Sources: Vaswani et al., "Attention Is All You Need" (2017), section 3.2; Ainslie et al., "GQA" (2023),
section 2.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from labkit.lab import Lab, run_lab
from phase1_tokens_embeddings.memory_math import kv_bytes_per_token
from phase2_attention_kvcache import attention_by_hand as by_hand

DEFAULT_TEXT = "The old woman went to the door and called the little dog."


# ---------------------------------------------------------------------- the definition


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    query_positions: torch.Tensor | Sequence[int] | None = None,
) -> torch.Tensor:
    """Causal attention of N queries over M keys and values: the readable definition.

    Args:
        q: queries [N, num_heads, head_dim].
        k, v: keys and values [M, num_kv_heads, head_dim]; num_heads is a multiple of num_kv_heads.
        scale: scores are multiplied by it; by default 1 / sqrt(head_dim).
        query_positions: where each query stands, N whole numbers in 0..M-1. The query at position p sees the
            keys 0..p. By default the queries are the last N of the M tokens: M-N .. M-1.

    Returns:
        [N, num_heads, head_dim], in the number format of `q`. Inside, everything is float32 (float64 for
        float64 input): shares of thousands of tokens lose too much in 16 bits.

    Raises:
        ValueError: shapes that do not fit, heads that do not divide, a position outside the keys.

    A future token has a share of exactly 0, so whatever finite numbers stand there change nothing. A future
    *value* that is NaN does poison the result, for 0 x NaN = NaN: a cache must never offer values that were
    not written yet. (A future *key* that is NaN is harmless: its score is overwritten before softmax.)
    """
    if v.shape != k.shape:
        raise ValueError(
            f"k is {_shape(k)} and v is {_shape(v)}: every key needs one value of the same length"
        )
    weights = attention_weights(q, k, scale=scale, query_positions=query_positions)  # [num_heads, N, M]
    num_queries, num_heads, head_dim = q.shape
    # Query heads that share a key/value head stand next to each other: heads 0..g-1 use key/value head 0.
    num_keys, num_kv_heads, _ = k.shape
    grouped = weights.view(num_kv_heads, num_heads // num_kv_heads, num_queries, num_keys)
    out = torch.einsum("hgnm,mhd->nhgd", grouped, v.to(weights.dtype))
    return out.reshape(num_queries, num_heads, head_dim).to(q.dtype)


def attention_weights(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    scale: float | None = None,
    query_positions: torch.Tensor | Sequence[int] | None = None,
) -> torch.Tensor:
    """The shares [num_heads, N, M] with which each query looks at each key. Arguments as in `attention`.

    Each row adds up to 1; future tokens have exactly 0.
    """
    _check_shapes(q, k)
    num_queries, num_heads, head_dim = q.shape
    num_keys, num_kv_heads, _ = k.shape
    positions = _positions(query_positions, num_queries, num_keys, q.device)
    scale = head_dim**-0.5 if scale is None else scale
    number_format = torch.promote_types(q.dtype, torch.float32)

    # 1. Scores: the dot product of every query with every key it could look at.
    grouped = q.to(number_format).view(num_queries, num_kv_heads, num_heads // num_kv_heads, head_dim)
    scores = torch.einsum("nhgd,mhd->hgnm", grouped, k.to(number_format)) * scale
    # 2. The mask: minus infinity before softmax is a share of exactly 0 after it.
    future = torch.arange(num_keys, device=q.device)[None, :] > positions[:, None]  # [N, M]
    scores = scores.masked_fill(future, float("-inf"))
    # 3. Scores to shares.
    return torch.softmax(scores, dim=-1).reshape(num_heads, num_queries, num_keys)


def split_heads(x: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Cut vectors [N, d_model] into heads [N, num_heads, head_dim]. Nothing is computed or moved."""
    if x.shape[-1] % num_heads:
        raise ValueError(
            f"a vector of {x.shape[-1]} numbers cannot be cut into {num_heads} heads of equal length"
        )
    return x.view(x.shape[0], num_heads, x.shape[-1] // num_heads)


def merge_heads(x: torch.Tensor) -> torch.Tensor:
    """Put the heads [N, num_heads, head_dim] back into one vector [N, d_model] per token."""
    return x.reshape(x.shape[0], -1)


def _check_shapes(q: torch.Tensor, k: torch.Tensor) -> None:
    if q.dim() != 3 or k.dim() != 3:
        raise ValueError(f"q is {_shape(q)} and k is {_shape(k)}: both need [tokens, heads, head_dim]")
    if q.shape[2] != k.shape[2]:
        raise ValueError(
            f"q is {_shape(q)} and k is {_shape(k)}: their last dimension, head_dim, must be the same"
        )
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"{q.shape[1]} query heads cannot share {k.shape[1]} key/value heads evenly: use a divisor"
        )


def _positions(
    given: torch.Tensor | Sequence[int] | None, num_queries: int, num_keys: int, device: torch.device
) -> torch.Tensor:
    if given is None:
        if num_queries > num_keys:
            raise ValueError(
                f"{num_queries} queries but only {num_keys} keys: each query needs its own key, too"
            )
        return torch.arange(num_keys - num_queries, num_keys, device=device)
    positions = torch.as_tensor(given, device=device)
    if positions.shape != (num_queries,):
        raise ValueError(
            f"query_positions is {_shape(positions)}: {num_queries} queries need {num_queries} positions"
        )
    outside = positions[(positions < 0) | (positions >= num_keys)]
    if len(outside):
        raise ValueError(
            f"query position {outside[0].item()} is outside the {num_keys} keys (0..{num_keys - 1})"
        )
    return positions


def _shape(x: torch.Tensor) -> str:
    return str(list(x.shape))


# ---------------------------------------------------------------------- the story


def story(lab: Lab) -> None:
    from phase2_attention_kvcache.attention_in_models import load_sentence, show_heads

    sentence = load_sentence(lab.args)  # first, so that a mistake in the options shows at once
    by_hand_story(lab)
    definition_story(lab)
    heads_story(lab)
    grouped_story(lab)
    show_heads(lab, sentence)


def by_hand_story(lab: Lab) -> None:
    lab.title("Three words by hand")
    s = by_hand.attention_by_hand(by_hand.EMBEDDINGS, by_hand.W_Q, by_hand.W_K, by_hand.W_V)
    words = by_hand.WORDS
    lab.say("""Each word starts as a vector of three numbers: a row of X. Three fixed matrices, found in
        training, turn it into a query (what am I looking for?), a key (what do I offer?) and a value (what
        do I hand over?).""")
    lab.show(
        by_hand.side_by_side(
            [("X", by_hand.EMBEDDINGS), ("Q = X W_Q", s.q), ("K = X W_K", s.k), ("V = X W_V", s.v)], words
        )
    )
    lab.say("""The raw score of two words is the dot product of one's query with the other's key. "love"
        with "dogs": 3x2 + 0x1 + 1x1 = 7. Row: the word that looks. Column: the word it looks at.""")
    lab.show(by_hand.side_by_side([("raw = Q K^T", s.raw)], words))
    lab.say("""Dot products of longer vectors are larger, and softmax of large numbers puts everything on
        one word. So scores are divided by the square root of the vectors' length, here sqrt(3) = 1.73. Then
        the mask: a word may not look at words that come later, because when the model writes they do not
        exist yet.""")
    lab.show(by_hand.side_by_side([("scaled = raw / 1.73", s.scaled), ("masked", s.masked)], words, 2))
    lab.predict(
        claim="dogs-weights",
        question='three shares of "dogs" in percent, from scores 5, 5, 4 and vector length 3',
        predicted=[39, 39, 22],
        measured=by_hand.percent(s.weights[2]),
        source_says=[38, 38, 24],
        note="e^(5/1.73) : e^(5/1.73) : e^(4/1.73) = 17.9 : 17.9 : 10.1.",
    )
    lengths = [
        d
        for d in range(1, 1025)
        if by_hand.percent(by_hand.softmax([x / d**0.5 for x in s.raw[2]])) == [38, 38, 24]
    ]
    lab.predict(
        claim="dogs-weights",
        question="vector length d whose sqrt(d) would give 38 / 38 / 24",
        predicted=5,
        measured=lengths[0] if len(lengths) == 1 else lengths,
        source_says=3,
        note="d = 3 gives 39/39/22, d = 4 gives 38/38/23, d = 5 gives 38/38/24. The source says that its "
        "vectors have 3 numbers.",
    )
    lab.predict(
        claim="dogs-weights",
        question='two shares of "love" in percent, from scores 5 and 10 (its future is masked)',
        predicted=[5, 95],
        measured=by_hand.percent(s.weights[1][:2]),
        source_says=[1, 99],
    )
    love = by_hand.divisors_that_give(s.raw[1][:2], [1, 99])
    dogs = by_hand.divisors_that_give(s.raw[2], [38, 38, 24])
    lab.say(f"""Solved for the divisor: 1/99 comes out for divisors from {love[0]:.2f} to {love[1]:.2f}, so
        for scores that are not scaled at all; 38/38/24 for {dogs[0]:.2f} to {dogs[1]:.2f}. The two ranges
        do not meet: no one scaling gives both of the source's drawings.""")
    lab.show(
        by_hand.side_by_side(
            [("softmax: the shares", s.weights), ("output = shares x V", s.output)], words, 2
        )
    )
    lab.say("""Read the last row: "dogs" goes on as 0.39 of the value of "I", 0.39 of "love" and 0.22 of its
        own. That is all attention does: it moves information between tokens. "I" comes first, sees only
        itself and keeps its value.""")


def definition_story(lab: Lab) -> None:
    lab.title("The same with tensors")
    s = by_hand.attention_by_hand(by_hand.EMBEDDINGS, by_hand.W_Q, by_hand.W_K, by_hand.W_V)
    q, k, v = (torch.tensor(m, dtype=torch.float32).unsqueeze(1) for m in (s.q, s.k, s.v))  # one head
    by_hand_gap = (attention(q, k, v).squeeze(1) - torch.tensor(s.output)).abs().max().item()
    lab.say(f"""`attention(q, k, v)` above in this file is the same in tensors, for many heads at once. On
        the three words it differs from the hand calculation by at most {by_hand_gap:.0e}. Next to PyTorch's
        own fused kernel, on random vectors, 8 query heads of 64 numbers over 2 key/value heads:""")
    rows, generator = [], torch.Generator().manual_seed(lab.seed)
    for n in (16, 64) if lab.quick else (16, 64, 256, 1024):
        q, k, v = (torch.randn(n, h, 64, generator=generator) for h in (8, 2, 2))
        ours = attention(q, k, v)
        theirs = F.scaled_dot_product_attention(
            *(x.transpose(0, 1)[None] for x in (q, k, v)), is_causal=True, enable_gqa=True
        )
        gap = (ours - theirs[0].transpose(0, 1)).abs().max().item()
        rows.append([n, 8 * n * n, 8 * n * n * 4 / 2**20, gap])
    lab.predict(
        claim="attention-definition",
        question="ours and PyTorch's agree to 5 decimals at every length",
        predicted=True,
        measured=all(row[-1] < 1e-5 for row in rows),
    )
    lab.table(
        "Ours and PyTorch's", ["tokens", "scores in 8 heads", "scores in MiB", "largest difference"], rows
    )
    lab.record(definition_gaps={str(row[0]): row[-1] for row in rows})
    lab.say("""The definition writes down every score: 4 times the scores for twice the tokens. A fused
        kernel works through them in small tiles and never stores them all. The result is the same, the
        memory is not.""")


def heads_story(lab: Lab) -> None:
    from transformers import GPT2Config, GPT2Model

    from phase2_attention_kvcache.attention_in_models import block_order

    lab.title("Heads")
    lab.say("""One softmax gives one set of shares. But a token may need several things at once: the word
        before it, the verb of its sentence, the name at the start. So the vector is cut into pieces, the
        heads, and each head attends by itself. Cutting is only a change of view: [N, 768] becomes [N, 12,
        64]. Afterwards the pieces are put side by side again.""")
    with torch.device("meta"):  # shapes without memory: no weights are made
        gpt2 = GPT2Model(GPT2Config(n_layer=1))
        split = split_heads(torch.empty(5, gpt2.config.n_embd), gpt2.config.n_head)
    block = gpt2.h[0]
    lab.predict(
        claim="head-split",
        question="GPT-2 small: heads, numbers in a head, width of a token's vector",
        predicted=[12, 64, 768],
        measured=[split.shape[1], split.shape[2], merge_heads(split).shape[1]],
    )
    lab.predict(
        claim="head-split",
        question="its MLP: numbers going in, in the middle, coming out",
        predicted=[768, 3072, 768],
        measured=[*block.mlp.c_fc.weight.shape, block.mlp.c_proj.weight.shape[1]],
        note="The MLP works on each token alone. Attention is the only place where tokens meet.",
    )
    config = GPT2Config(
        n_layer=1, n_embd=24, n_head=12, n_positions=8, vocab_size=8, bos_token_id=0, eos_token_id=0
    )
    lab.predict(
        claim="head-split",
        question="order of the parts inside a block",
        predicted="LayerNorm, attention, residual, LayerNorm, MLP, residual",
        measured=", ".join(block_order(GPT2Model(config).eval(), torch.arange(5)[None])),
        note="Heard by listening to the parts of transformers' GPT-2 at work; residuals found by arithmetic.",
    )


def grouped_story(lab: Lab) -> None:
    lab.title("Grouped queries: fewer keys and values to remember")
    lab.say("""While a model writes, it keeps the keys and values of all tokens so far: the KV cache.
        Queries are used once and dropped. In grouped-query attention several query heads share one
        key/value head, so the cache shrinks by that factor. The model loses a little freedom, which
        training largely makes up for. Llama 3 8B has 32 layers and 32 query heads of 128 numbers, kept in
        16 bits:""")
    context = 8192

    def cache_bytes(kv_heads: int) -> int:
        """Size of a full context's keys and values, from tensors of their shape."""
        with torch.device("meta"):
            return sum(
                torch.empty(context, kv_heads, 128, dtype=torch.bfloat16).nbytes
                for _layer in range(32)
                for _kind in ("keys", "values")
            )

    rows = []
    for kind, kv_heads in (("one for each query head", 32), ("grouped (as built)", 8), ("one for all", 1)):
        per_token = kv_bytes_per_token(num_layers=32, num_kv_heads=kv_heads, head_dim=128)
        rows.append(
            [
                kind,
                kv_heads,
                per_token / 1024,
                per_token * context / 2**30,
                int(64e9 // (per_token * context)),
            ]
        )
    lab.predict(
        claim="gqa-memory",
        question="factor by which 8 instead of 32 key/value heads shrink the KV cache",
        predicted=32 // 8,
        measured=cache_bytes(32) / cache_bytes(8),
    )
    lab.predict(
        claim="gqa-memory",
        question="bytes of keys and values that a token takes, with 8 key/value heads",
        predicted=kv_bytes_per_token(num_layers=32, num_kv_heads=8, head_dim=128),
        measured=cache_bytes(8) / context,
        note="2 x layers x heads x numbers x bytes; measured on tensors of the cache's shape.",
    )
    lab.table(
        "KV cache of Llama 3 8B",
        ["key/value heads", "how many", "KiB a token", f"GiB for {context:,} tokens", "users in 64 GB"],
        rows,
        note="64 GB: what an 80 GB card has left after 16 GB of weights. Every user with a full context.",
    )
    lab.say(f"""What it costs: the same card holds {rows[1][4]} such users instead of {rows[0][4]}. A card
        costs the same either way, so a user costs about a quarter.""")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--text", default=DEFAULT_TEXT, help="the sentence to look at")
    parser.add_argument(
        "--layer", type=int, help="layer to draw (the one with the strongest previous-token head)"
    )


def main(argv: Sequence[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("model", "seed", "quick"), add_arguments=add_arguments, argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
