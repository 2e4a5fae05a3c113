"""The chapters of the story of positions: the three kinds side by side, and the effect of rotation."""

import math

import torch
from matplotlib.figure import Figure
from safetensors.torch import load_file

from labkit.figures import BLUE, GREY, MUTED, ORANGE, PURPLE, new_figure, plain_numbers
from labkit.lab import Lab
from labkit.models import find_model
from phase1_tokens_embeddings.weights import kv_bytes_per_token
from phase2_attention_kvcache.model.positions import apply_rotary, rotary_frequencies, rotary_tables

HEAD_DIM = 64
MOST_DISTANCE = 64
DISTANCES = {1: (BLUE, "-"), 16: (ORANGE, "--"), 48: (PURPLE, ":")}  # drawn, each with its colour and line
LLAMA31 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""`rope_scaling` of Llama 3.1 8B, with theta 500,000 and heads of 128 numbers."""


def clocks_story(lab: Lab) -> None:
    lab.title("Rotary positions: pairs that rotate at different speeds")
    lab.say("""Rotary encoding reads a head's numbers two at a time, as points in a plane, and rotates each
        point further with every position. The first pair rotates fast, the last one hardly moves.""")
    turns = enumerate(rotary_frequencies(64).tolist())  # radians a token
    lab.table(
        "A head of 64 numbers, theta 10,000",
        ["pair", "degrees per token", "tokens per full turn"],
        [[i, math.degrees(f), 2 * math.pi / f] for i, f in turns if i in (0, 1, 8, 16, 24, 31)],
    )


def kinds_story(lab: Lab) -> None:
    lab.title("Does a score depend on the distance alone?")
    scores = compare_kinds(lab.seed, num_places=8 if lab.quick else 64)
    for name, expected in (("rotary", False), ("learned", True), ("sinusoidal", True)):
        lab.predict(
            "rope-relative",
            f"{name}: the score changes when both tokens move on together, their distance kept",
            predicted=expected,
            measured=bool(scores[name].std(0).mean() > 1e-3 * scores[name].std()),
        )
    # How much a score changes with the place, beside how much it changes with the distance. s: [places, distances]
    rows = [[name, s[:, 1].min().item(), s[:, 1].max().item(), (s.std(0).mean() / s.mean(0).std()).item()]
            for name, s in scores.items()]  # fmt: skip
    lab.table(
        f"Score of the same two tokens, measured at {len(scores['rotary'])} places of the context",
        ["positions", "distance 1: lowest", "highest", "change with place / change with distance"],
        rows,
        note="Query and key vectors are random but the same for all three. Learned: the table of `tales`.",
    )
    lab.figure(draw_scores(scores), "positions_scores")
    lab.say("""Turning the query by m steps and the key by n steps leaves an angle of m - n steps between them, and a
        dot product depends on the angle alone. Where a position is added instead, the score also holds products of
        one token's content with the other one's place.""")


def long_context_story(lab: Lab) -> None:
    lab.title("A longer context")
    lab.say("""A rotary angle can be computed for any position, but the slow pairs then come to angles that the model
        never met in training. Llama 3.1 was trained on 8,192 tokens first. For 131,072 its slow pairs were slowed down
        by 8; the fast pairs, which tell neighbours apart, stay.""")
    plain = rotary_frequencies(128, 500_000.0)
    scaled = rotary_frequencies(128, 500_000.0, LLAMA31)
    slower_by = (plain / scaled).tolist()
    # Pair i turns once in 2 pi theta^(i / 64) tokens. That is less than L tokens for so many pairs:
    fast, turning = (math.ceil(64 * math.log(n / (2 * math.pi)) / math.log(500_000)) for n in (2048, 8192))
    lab.predict(
        "rope-llama3",
        "Llama 3.1, 64 pairs: how many stay, lie between, are slowed down by 8",
        predicted=[fast, turning - fast, 64 - turning],
        measured=[
            sum(x == 1 for x in slower_by),
            sum(1 < x < 7.999 for x in slower_by),
            sum(x >= 7.999 for x in slower_by),
        ],
        note="Stay: a turn in under 2,048 tokens (4 turns in 8,192). Slowed down: not one turn in 8,192.",
    )
    per_token = kv_bytes_per_token(num_layers=32, num_kv_heads=8, head_dim=128)  # in 16 bits
    lab.say(f"""What it costs: a position costs almost nothing, but its token takes memory. A full context of
        131,072 tokens holds {131072 * per_token / 2**30:.0f} GiB of keys and values in Llama 3.1 8B, about
        as much as its weights. One such user takes the room of 16 users with 8,192 tokens.""")
    lab.figure(draw_speeds(), "rotary_speeds")


def sinusoidal_table(num_positions: int, d_model: int) -> torch.Tensor:
    """The fixed table [num_positions, d_model] of Vaswani et al., section 3.5.

    Numbers 2i and 2i+1 of a row are the sine and the cosine of position / 10000^(2i / d_model): the hands
    of d_model / 2 clocks, each slower than the one before.
    """
    angles = torch.outer(torch.arange(num_positions).float(), rotary_frequencies(d_model))
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


def compare_kinds(seed: int, num_places: int) -> dict[str, torch.Tensor]:
    """Scores of one query content and one key content, moved through the context.

    The same two contents and the same two projections W_Q and W_K serve all three kinds. Position vectors
    are made as long as the contents, so that neither drowns the other.

    Returns:
        For each kind [num_places, MOST_DISTANCE + 1]: row = where the query stands, column = how far back
        the key is.
    """
    weights = load_file(find_model("tales") / "model.safetensors")
    # The trained position table of the course's own model: [1024, 256].
    table = next(w for name, w in weights.items() if name.endswith("wpe.weight")).double()
    num_positions, d_model = table.shape
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, d_model, dtype=torch.float64, generator=generator)
    w_q, w_k = torch.randn(2, d_model, HEAD_DIM, dtype=torch.float64, generator=generator) / d_model**0.5

    places = torch.linspace(MOST_DISTANCE, num_positions - 1, num_places).long()
    m = places[:, None].expand(-1, MOST_DISTANCE + 1).flatten()  # query positions
    n = (places[:, None] - torch.arange(MOST_DISTANCE + 1)).flatten()  # key positions

    def added(table: torch.Tensor) -> torch.Tensor:
        table = table / table.norm(dim=-1).mean() * d_model**0.5  # as long as the contents
        q = (x + table[m]) @ w_q
        k = (y + table[n]) @ w_k
        return (q * k).sum(-1)

    def turned() -> torch.Tensor:
        cos, sin = rotary_tables(num_positions, rotary_frequencies(HEAD_DIM).double(), torch.float64)
        q = apply_rotary((x @ w_q).expand(len(m), 1, -1), cos[m], sin[m])
        k = apply_rotary((y @ w_k).expand(len(n), 1, -1), cos[n], sin[n])
        return (q * k).sum((-2, -1))

    scores = {
        "learned": added(table),
        "sinusoidal": added(sinusoidal_table(num_positions, d_model).double()),
        "rotary": turned(),
    }
    return {name: (s / HEAD_DIM**0.5).view(num_places, -1) for name, s in scores.items()}


def draw_scores(scores: dict[str, torch.Tensor]) -> Figure:
    """Score against the place of the query, at three distances, for the three kinds. `scores` comes from `compare_kinds`."""
    fig, axes = new_figure(
        "A rotary score depends on the distance alone",
        "The same two vectors, moved through a context of 1,024. A rotary line is flat.",
        panels=len(scores),
        size=(7.2, 8.4),
    )
    highest = max(s[:, list(DISTANCES)].abs().max().item() for s in scores.values())
    for axis, (name, s) in zip(axes, scores.items(), strict=True):
        places = torch.linspace(MOST_DISTANCE, 1023, len(s))
        for distance, (color, line) in DISTANCES.items():
            axis.plot(places, s[:, distance], color=color, linestyle=line, label=f"distance {distance}")
        axis.set_title(name, fontsize=11)
        axis.set(xlabel="position of the query", ylim=(-1.1 * highest, 1.1 * highest))
        axis.label_outer()
    axes[1].set_ylabel("score before softmax")
    axes[-1].legend(loc="upper right", fontsize=9)
    return fig


def draw_speeds() -> Figure:
    """Tokens per full turn of each pair, for three settings."""
    plain = rotary_frequencies(128, 500_000.0)
    settings = [
        ("theta 10,000 (Llama 2)", GREY, rotary_frequencies(128)),
        ("theta 500,000 (Llama 3)", BLUE, plain),
        ("theta 500,000 and slow pairs slowed (Llama 3.1)", ORANGE,
         rotary_frequencies(128, 500_000.0, LLAMA31)),
    ]  # fmt: skip
    unfinished = int((2 * math.pi / plain > 8192).sum())
    fig, (axis,) = new_figure(
        f"{unfinished} of Llama 3's 64 pairs complete no turn within 8,192 tokens",
        "In a longer context they reach angles not seen in training. Llama 3.1 slows them by 8, and six others by less.",
        size=(7.2, 5.0),
    )
    for name, color, frequencies in settings:
        axis.plot(2 * math.pi / frequencies, color=color, label=name)
    for context in (8192, 131072):
        axis.axhline(context, color=MUTED, linewidth=1, linestyle="--")
        axis.text(0, context * 1.15, f"context {context:,}", color=MUTED, fontsize=9)
    axis.set_yscale("log")
    plain_numbers(axis, "y")
    axis.set(xlabel="pair of numbers in a head of 128", ylabel="tokens per full turn")
    axis.legend(loc="lower right", fontsize=9.5)
    return fig
