"""The chapters of the story of attention."""

import torch
import torch.nn.functional as F

from labkit.lab import Lab
from phase2_attention_kvcache.model.attention import attention
from phase2_attention_kvcache.story import attention_by_hand as by_hand

DEFAULT_TEXT = "Once upon a time there was a king who had a daughter"  # the beginning of alice's prompt


def by_hand_story(lab: Lab) -> None:
    lab.title("Three words by hand")
    s = by_hand.attention_by_hand(by_hand.EMBEDDINGS, by_hand.W_Q, by_hand.W_K, by_hand.W_V)
    words = by_hand.WORDS
    lab.say("""Each word starts as a vector of three numbers: a row of X. Three fixed matrices, found in
        training, turn it into a query (what it needs), a key (what it offers) and a value (what
        others receive from it).""")
    views = [("X", by_hand.EMBEDDINGS), ("Q = X W_Q", s.q), ("K = X W_K", s.k), ("V = X W_V", s.v)]
    lab.show(by_hand.side_by_side(views, words))
    lab.say("""The raw score of two words is the dot product of one's query with the other's key. "love"
        with "dogs": 3x2 + 0x1 + 1x1 = 7. Row: the word that attends. Column: the word attended to.""")
    lab.show(by_hand.side_by_side([("raw = Q K^T", s.raw)], words))
    lab.say("""Dot products of longer vectors are larger, and softmax of large numbers gives nearly all weight to
        one word. So scores are divided by the square root of the vectors' length, here sqrt(3) = 1.73. Then
        the mask: a word must not attend to later words, because they do not exist yet when the model
        generates them.""")
    lab.show(by_hand.side_by_side([("scaled = raw / 1.73", s.scaled), ("masked", s.masked)], words, 2))
    lab.predict(
        "dogs-weights",
        'three weights of "dogs" in percent, from scores 5, 5, 4 and vector length 3',
        predicted=[39, 39, 22],
        measured=by_hand.percent(s.weights[2]),
        source_says=[38, 38, 24],
        note="e^(5/1.73) : e^(5/1.73) : e^(4/1.73) = 17.9 : 17.9 : 10.1. The source's figures need a vector length of 5.",
    )
    results = [("softmax: the weights", s.weights), ("output = weights x V", s.output)]
    lab.show(by_hand.side_by_side(results, words, 2))
    lab.say("""Read the last row: "dogs" goes on as 0.39 of the value of "I", 0.39 of "love" and 0.22 of its
        own. That is all attention does: it moves information between tokens. "I" comes first, sees only
        itself and keeps its value.""")
    lab.predict(
        "dogs-weights",
        'two weights of "love" in percent, from scores 5 and 10 (its future is masked)',
        predicted=[5, 95],
        measured=by_hand.percent(s.weights[1][:2]),
        source_says=[1, 99],
        note="Without any scaling e^5 : e^10 gives 1 / 99. So no one divisor gives both of the source's drawings.",
    )


def definition_story(lab: Lab) -> None:
    lab.title("The same with tensors")
    s = by_hand.attention_by_hand(by_hand.EMBEDDINGS, by_hand.W_Q, by_hand.W_K, by_hand.W_V)
    q, k, v = (torch.tensor(m, dtype=torch.float32).unsqueeze(1) for m in (s.q, s.k, s.v))  # one head
    by_hand_gap = (attention(q, k, v).squeeze(1) - torch.tensor(s.output)).abs().max().item()
    lab.say(f"""`attention(q, k, v)` in model/attention.py is the same in tensors, for many heads at once. On
        the three words it differs from the hand calculation by at most {by_hand_gap:.0e}. Next to PyTorch's
        own fused kernel, on random vectors, 8 query heads of 64 numbers over 2 key/value heads:""")
    rows, generator = [], torch.Generator().manual_seed(lab.seed)
    for n in (16, 64) if lab.quick else (16, 64, 256, 1024):
        q, k, v = (torch.randn(n, h, 64, generator=generator) for h in (8, 2, 2))
        ours = attention(q, k, v)
        heads_first = (x.transpose(0, 1)[None] for x in (q, k, v))
        theirs = F.scaled_dot_product_attention(*heads_first, is_causal=True, enable_gqa=True)
        gap = (ours - theirs[0].transpose(0, 1)).abs().max().item()
        rows.append([n, 8 * n * n, 8 * n * n * 4 / 2**20, gap])
    lab.predict(
        "attention-definition",
        "ours and PyTorch's agree to 5 decimals at every length",
        predicted=True,
        measured=all(row[-1] < 1e-5 for row in rows),
    )
    columns = ["tokens", "scores in 8 heads", "scores in MiB", "largest difference"]
    lab.table("Ours and PyTorch's", columns, rows)


def heads_story(lab: Lab) -> None:
    from transformers import GPT2Config, GPT2Model

    lab.title("Heads")
    lab.say("""A token may need several things at once. So its vector is cut into pieces, the heads, and each head
        attends by itself. Cutting is only a change of view: [N, 768] becomes [N, 12, 64], and back.""")
    with torch.device("meta"):  # shapes without memory: no weights are made
        gpt2 = GPT2Model(GPT2Config(n_layer=1))
        split = torch.empty(5, gpt2.config.n_embd).unflatten(1, (gpt2.config.n_head, -1))
    block = gpt2.h[0]
    lab.predict(
        "head-split",
        "GPT-2 small: heads, numbers in a head, width of a token's vector",
        predicted=[12, 64, 768],
        measured=[split.shape[1], split.shape[2], split.flatten(1).shape[1]],
    )
    lab.predict(
        "head-split",
        "its MLP: numbers going in, in the middle, coming out",
        predicted=[768, 3072, 768],
        measured=[*block.mlp.c_fc.weight.shape, block.mlp.c_proj.weight.shape[1]],
        note="The MLP works on each token alone. Attention is the only place where tokens exchange information.",
    )
