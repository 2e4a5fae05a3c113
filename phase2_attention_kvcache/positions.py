"""Positions: how a model knows that "dog bites man" is not "man bites dog".

Attention by itself sees a bag of tokens: it compares contents, wherever they stand. So position has to be
put into the vectors. Three ways, in the order in which the field took them up:

    sinusoidal  a fixed wave pattern for each position, added to the token's vector   (Transformer, 2017)
    learned     a table with one trained vector for each position, added as well       (GPT-2, 2019)
    rotary      nothing is added: queries and keys are turned, further at each position (Llama)

You will see which of them makes a score depend on the distance of two tokens alone, and why that matters.

Sources: Vaswani et al., "Attention Is All You Need" (2017), section 3.5; Su et al., "RoFormer" (2021),
section 3.2; "The Llama 3 Herd of Models" (2024), section 3.2, for the long context.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from labkit.lab import Lab, run_lab
from phase1_tokens_embeddings.memory_math import kv_bytes_per_token

# ---------------------------------------------------------------------- added to the vectors


def sinusoidal_table(num_positions: int, d_model: int) -> torch.Tensor:
    """The fixed table [num_positions, d_model] of Vaswani et al., section 3.5.

    Numbers 2i and 2i+1 of a row are the sine and the cosine of position / 10000^(2i / d_model): the hands
    of d_model / 2 clocks, each slower than the one before.

    Raises:
        ValueError: d_model is odd, or a size is below 1.
    """
    if num_positions < 1:
        raise ValueError(f"num_positions is {num_positions}: a table needs at least 1 row")
    if d_model < 2 or d_model % 2:
        raise ValueError(f"d_model is {d_model}: sines and cosines come in pairs, so it must be even")
    angles = torch.outer(torch.arange(num_positions).float(), rotary_frequencies(d_model))
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


def look_up(table: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rows of a table [P, d] for positions [N] -> [N, d], as GPT-2 does with its learned table `wpe`.

    Raises:
        ValueError: a position outside the table. A learned table simply ends: there is no row to take.
    """
    outside = positions[(positions < 0) | (positions >= len(table))]
    if len(outside):
        raise ValueError(
            f"position {outside[0].item()} is outside the table of {len(table)} (0..{len(table) - 1}): "
            "this model's context ends there"
        )
    return table[positions]


# ---------------------------------------------------------------------- rotary


def rotary_frequencies(
    head_dim: int, theta: float = 10000.0, scaling: dict[str, Any] | None = None
) -> torch.Tensor:
    """How far each pair of numbers turns from one position to the next, in radians: [head_dim / 2].

    Pair i turns by theta^(-2i / head_dim): the first by 1 (a full turn in 6.3 tokens), the last by nearly
    1/theta.

    Args:
        theta: the base; a larger one makes all pairs but the first slower.
        scaling: `rope_scaling` or `rope_parameters` of a config.json, for contexts longer than those trained
            first. None or kind "default": none. "linear": every turn is divided by `factor`. "llama3": slow
            pairs (fewer than `low_freq_factor` turns in the original context) are divided by `factor`,
            fast ones (more than `high_freq_factor` turns) stay, with a smooth passage between.

    Raises:
        ValueError: head_dim is odd, theta is not positive, an unknown kind of scaling, a missing or
            impossible value in it.
    """
    if head_dim < 2 or head_dim % 2:
        raise ValueError(f"head_dim is {head_dim}: numbers turn in pairs, so it must be even")
    if not theta > 0:
        raise ValueError(f"theta is {theta}: it must be above 0")
    # In float32, like every implementation: the angles must match the ones the model was trained with.
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if scaling is None:
        return frequencies

    kind = scaling.get("rope_type", scaling.get("type", "default"))  # older files say "type"
    if scaling.get("rope_theta", theta) != theta:
        raise ValueError(f"theta is {theta}, but the scaling says rope_theta {scaling['rope_theta']}")
    if scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(
            f"partial_rotary_factor {scaling['partial_rotary_factor']} is not supported: only 1 is"
        )
    if kind == "default":
        return frequencies
    if kind == "linear":
        return frequencies / _positive(scaling, "factor", kind)
    if kind == "llama3":
        return _llama3(frequencies, scaling)
    raise ValueError(f"rotary scaling {kind!r} is not supported: default, linear and llama3 are")


def _llama3(frequencies: torch.Tensor, scaling: dict[str, Any]) -> torch.Tensor:
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    factor, low, high, context = (_positive(scaling, name, "llama3") for name in names)
    if low >= high:
        raise ValueError(f"low_freq_factor {low} must be below high_freq_factor {high}")
    turns = context / (2 * math.pi / frequencies)  # full turns within the original context
    fast = (turns - low) / (high - low)  # 0: as slow as the slow ones, 1: as fast as the fast ones
    between = (1 - fast) * frequencies / factor + fast * frequencies
    return torch.where(turns < low, frequencies / factor, torch.where(turns > high, frequencies, between))


def _positive(scaling: dict[str, Any], name: str, kind: str) -> float:
    value = scaling.get(name)
    if not isinstance(value, (int, float)) or not value > 0:
        raise ValueError(f"rotary scaling {kind!r} needs {name} above 0, got {value!r}")
    return value


def rotary_tables(
    max_positions: int, frequencies: torch.Tensor, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of every angle, computed once: two tables [max_positions, head_dim / 2].

    The angles are computed in float32 and only the result is rounded to `dtype`. In bfloat16 the position
    itself would be rounded: 1,001 and 1,002 would both be 1,000.
    """
    positions = torch.arange(max_positions, device=frequencies.device, dtype=frequencies.dtype)
    angles = torch.outer(positions, frequencies)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn each pair of numbers by its token's angle.

    Args:
        x: queries or keys [N, heads, head_dim].
        cos, sin: [N, head_dim / 2], the rows of `rotary_tables` at the tokens' positions.

    Returns:
        [N, heads, head_dim] in the number format of `x`.

    Which numbers form a pair? In the paper neighbours do: 0 and 1, 2 and 3. Here, as in Hugging Face's
    files, number i of the first half goes with number i of the second half. Both are the same up to the
    order of the numbers in a head (see `apply_rotary_interleaved`), and scores do not depend on order; but
    the weights in a file are made for one of the two.
    """
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)  # the same angles for every head
    # The usual rotation of a point (a, b): (a cos - b sin, b cos + a sin).
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def apply_rotary_interleaved(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The paper's own layout: numbers 2i and 2i+1 form a pair. Shapes as in `apply_rotary`."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2).to(x.dtype)


def to_half_split(head_dim: int) -> torch.Tensor:
    """The order that turns the paper's layout into Hugging Face's: 0, 2, 4, ..., 1, 3, 5, ...

    `x_half_split = x_interleaved[..., to_half_split(head_dim)]`
    """
    return torch.cat((torch.arange(0, head_dim, 2), torch.arange(1, head_dim, 2)))


# ---------------------------------------------------------------------- the story


def story(lab: Lab) -> None:
    from phase2_attention_kvcache.positions_compared import compare_kinds, draw_scores, draw_speeds

    lab.say("""Take two tokens, one that asks (query) and one that is looked at (key). Their contents stay
        the same all through this story. Only the places change. What happens to the score of the two?""")
    clocks_story(lab)

    lab.title("Does a score depend on the distance alone?")
    scores = compare_kinds(lab.seed, num_places=8 if lab.quick else 64)
    for name, expected in (("rotary", False), ("learned", True), ("sinusoidal", True)):
        lab.predict(
            claim="rope-relative",
            question=f"{name}: the score changes when both tokens move on together, their distance kept",
            predicted=expected,
            measured=bool(scores[name].std(0).mean() > 1e-3 * scores[name].std()),
        )
    rows = []
    for name, s in scores.items():  # [places, distances]
        rows.append([name, s[:, 1].min().item(), s[:, 1].max().item(), _spread(s)])
    lab.table(
        f"Score of the same two tokens, measured at {len(s)} places of the context",
        ["positions", "distance 1: lowest", "highest", "change with place / change with distance"],
        rows,
        note="Query and key vectors are random but the same for all three. Learned: the table of `tales`.",
    )
    lab.record(place_over_distance={row[0]: row[3] for row in rows})
    lab.figure(draw_scores(scores), "positions_scores")
    lab.say("""Why rotary alone does this: turning the query by m steps and the key by n steps leaves an angle
        of m - n steps between them, and a dot product only knows the angle. Where a position is added
        instead, the score also holds products of one token's content with the other one's place. A trained
        model can learn to make good use of those, but nothing guarantees it. Careful: "depends on the distance
        only" is said of two given contents. Other contents, another score.""")
    layout_story(lab)
    long_context_story(lab)
    lab.figure(draw_speeds(), "rotary_speeds")


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
    from phase2_attention_kvcache.positions_compared import LLAMA31

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


def main(argv: Sequence[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("seed", "quick"), argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
