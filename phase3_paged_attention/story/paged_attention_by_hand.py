"""A block table walked by hand: five tokens, one head, and what the online softmax knows after each of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from labkit.figures import BLUE, GREY, INK, ORANGE, TEAL, new_figure
from labkit.lab import Lab
from phase3_paged_attention.paging import paged_attention_loops

# One head of two numbers, blocks of two tokens. Logical blocks 0, 1, 2 are physical blocks 3, 1, 4.
QUERY = [1.0, 2.0]
KEYS = [[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 2.0], [0.0, 0.0]]  # scores 1, 3, 2, 5, 0
VALUES = [[4.0, 0.0], [0.0, 4.0], [2.0, 2.0], [4.0, 4.0], [0.0, 8.0]]
TABLE = [3, 1, 4]


@dataclass(frozen=True)
class Visit:
    """What the online softmax knows after a token. `shrink`: what its earlier sums were multiplied with."""

    physical: int
    offset: int
    score: float
    shrink: float
    largest: float
    weight: float
    total: float
    acc: list[float]


def walk(
    q: Sequence[float],
    k_cache: Sequence,
    v_cache: Sequence,
    table: Sequence[int],
    context_len: int,
    scale: float,
) -> list[Visit]:
    """The inner loops of `paged_attention_loops` for one head, with every step written down.

    Args:
        q: [head_dim]. k_cache, v_cache: [num_blocks][block_size][1][head_dim].
    """
    visits, largest, total, acc = [], -math.inf, 0.0, [0.0] * len(q)
    for token in range(context_len):
        logical, offset = divmod(token, len(k_cache[0]))
        key, value = k_cache[table[logical]][offset][0], v_cache[table[logical]][offset][0]
        score = scale * sum(a * b for a, b in zip(q, key, strict=True))
        shrink = math.exp(largest - max(largest, score))
        largest = max(largest, score)
        weight = math.exp(score - largest)
        total = total * shrink + weight
        acc = [a * shrink + weight * x for a, x in zip(acc, value, strict=True)]
        visits.append(Visit(table[logical], offset, score, shrink, largest, weight, total, acc))
    return visits


def scatter(rows: Sequence, table: Sequence[int], block_size: int, num_blocks: int) -> list:
    """Put a request's rows where its table says: [num_blocks][block_size][1][head_dim], NaN elsewhere."""
    blocks = [[[[math.nan] * len(rows[0])] for _ in range(block_size)] for _ in range(num_blocks)]
    for token, row in enumerate(rows):
        blocks[table[token // block_size]][token % block_size] = [list(row)]
    return blocks


def by_hand(lab: Lab) -> None:
    lab.title("A block table walked by hand")
    k_cache, v_cache = (scatter(rows, TABLE, block_size=2, num_blocks=6) for rows in (KEYS, VALUES))
    visits = walk(QUERY, k_cache, v_cache, TABLE, len(KEYS), scale=1.0)
    lab.say("""Five tokens, blocks of two, one head with vectors of two numbers. The request's table is
        3, 1, 4. Everything else in the six blocks is NaN, "not a number": it was never written. The query is
        (1, 2); a score is its dot product with a key, and for once we leave the division by
        sqrt(head_dim) out.""")
    lab.show(_draw_blocks())
    lab.predict(
        claim="online-softmax-shrink",
        question="the first score is 1, so the sum of weights is exp(1 - 1) = 1. The second score is 3, and becomes "
        "the largest. What is the earlier sum multiplied with",
        predicted=math.exp(-2),
        measured=visits[1].shrink,
        tolerance=1e-9,
        note="exp(1 - 3). It was measured against 1 and has to be measured against 3.",
    )
    lab.predict(
        claim="online-softmax-rescales",
        question="the scores are 1, 3, 2, 5, 0. How often are the earlier sums scaled down",
        predicted=2,
        measured=sum(v.shrink < 1 for v in visits[1:]),
        note="At 3 and at 5, whenever a score beats all before it.",
    )
    lab.table(
        "What is known after each token",
        ["token", "block", "offset", "score", "largest", "earlier sums times", "its weight", "sum", "weighted values"],
        [[t, v.physical, v.offset, int(v.score), int(v.largest), v.shrink if t else None, v.weight, v.total,
          ", ".join(f"{a:.3f}" for a in v.acc)] for t, v in enumerate(visits)],
    )  # fmt: skip
    paged = [a / visits[-1].total for a in visits[-1].acc]
    loops = paged_attention_loops([QUERY], k_cache, v_cache, TABLE, len(KEYS), scale=1.0)[0]
    scores = torch.tensor(KEYS, dtype=torch.float64) @ torch.tensor(QUERY, dtype=torch.float64)
    plain = (scores.softmax(0) @ torch.tensor(VALUES, dtype=torch.float64)).tolist()
    off = max(abs(a - b) for other in (paged, loops) for a, b in zip(other, plain))
    lab.predict(
        claim="online-softmax-exact",
        question="divided by the sum, it is what plain softmax gives over the five keys in one row",
        predicted=True,
        measured=off < 1e-12,
        note=f"({', '.join(f'{a:.4f}' for a in paged)}); largest difference {off:.0e}. An identity, not an approximation.",
    )
    lab.figure(draw_walk(visits), "paged_attention_walk")


def _draw_blocks() -> str:
    holds = {block: [2 * i, 2 * i + 1] for i, block in enumerate(TABLE)}
    lines = ["block table   " + "   ".join(f"{i} -> {b}" for i, b in enumerate(TABLE)), ""]
    for block in range(6):
        cells = [f"token {t}" if t < len(KEYS) else "NaN" for t in holds.get(block, [])] or ["NaN", "NaN"]
        note = "   (the null block, never given out)" if block == 0 else ""
        lines.append(f"block {block}       | {cells[0]:^7} | {cells[1]:^7} |{note}")
    return "\n".join(lines)


def draw_walk(visits: Sequence[Visit]):
    """After each token, what every token seen so far counts in the running sum."""
    fig, (ax,) = new_figure(
        "A larger score shrinks the earlier weights by one factor",
        "The running sum of weights after each token; scores 1, 3, 2, 5, 0",
        size=(7.2, 4.6),
    )
    parts = np.zeros((len(visits), len(visits)))  # [after token, part of token]
    for t, visit in enumerate(visits):
        parts[t] = parts[t - 1] * visit.shrink if t else 0
        parts[t, t] = visit.weight
    bottom = np.zeros(len(visits))
    for token, colour in enumerate((BLUE, ORANGE, TEAL, GREY, INK)):
        label = f"token {token}, score {visits[token].score:.0f}"
        ax.bar(range(len(visits)), parts[:, token], 0.6, bottom=bottom, color=colour, label=label)
        bottom += parts[:, token]
    for t, visit in enumerate(visits):
        note = f"{visit.total:.3f}"
        if t and visit.shrink < 1:
            note += f"\nearlier x {visit.shrink:.3f}"
        ax.text(t, bottom[t] + 0.03, note, ha="center", va="bottom", fontsize=9)
    ax.set_xticks(range(len(visits)), [f"token {t}\nblock {v.physical}" for t, v in enumerate(visits)])
    ax.set(ylabel="sum of weights", ylim=(0, 1.95), xlabel="after reading")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    ax.grid(axis="x", visible=False)
    return fig
