"""The chapters of the GPU memory equation."""

from matplotlib.axes import Axes

from labkit.figures import BLUE, COLORS, GREEN, GREY, RED, new_figure, plain_numbers
from labkit.lab import Lab
from phase1_tokens_embeddings.weights import (
    CARDS,
    GB,
    GIB,
    SHAPES,
    Card,
    ModelShape,
    bytes_for_kv,
    kv_per_token,
    users_that_fit,
    weight_bytes,
)
from phase1_tokens_embeddings.weights.memory_math import KV_BYTES, USABLE

CONTEXTS = (512, 2048, 4096, 8192, 32768, 131072)


def both(nbytes: float) -> str:
    """
    >>> both(16 * 10**9)
    '16.00 GB = 14.90 GiB'
    """
    return f"{nbytes / GB:.2f} GB = {nbytes / GIB:.2f} GiB"


def tell_units(lab: Lab) -> None:
    import torch

    lab.title("GB and GiB")
    t4, a100, h100 = CARDS["t4"], CARDS["a100-80"], CARDS["h100"]
    llama = SHAPES["llama-3-8b"]
    fp16, fp8 = weight_bytes(llama, "FP16"), weight_bytes(llama, "FP8")
    lab.say("""A GB is 10^9 bytes, a GiB is 2^30 bytes, 7% more. Files are given in GB. Cards are labelled
        "GB" but built in GiB, and some keep a part for themselves: a "16 GB" T4 is built with 16 GiB, of
        which 1/16 holds the check bits of its error correction (ECC). 15 GiB are left, or 16.1 GB. The driver reserves a part of them:
        a program gets about 14.6 GiB.""")

    def left(card: Card, weights: float) -> float:
        return round((card.memory_bytes - weights) / GIB, 2)

    def five_numbers(fp16: float, fp8: float) -> list[float]:
        return [round(fp16 / GIB, 2), left(t4, fp16), left(a100, fp16), round(fp8 / GIB, 2), left(h100, fp8)]

    tokens = (t4.memory_bytes - int(fp16)) // kv_per_token(llama)
    lab.predict(
        "llama8b-fp16",
        "Llama-3 8B: weights in FP16; left on a T4; on an A100 80; weights in FP8; left on an H100",
        predicted=five_numbers(8.03e9 * 2, 8.03e9),
        measured=five_numbers(fp16, fp8),
        source_says=[14.9, 1.1, 65.1, 7.5, 72.5],
        unit="GiB",
        tolerance=0.01,
        note=f"Predicted from '8.03 billion' on the model card, measured tensor by tensor: {both(fp16)}. The "
        f"T4 has {both(t4.memory_bytes)}: room for {tokens} tokens of KV cache, if nothing else had to be "
        "there; but the driver reserves more. To leave 1.1, a T4 would have to offer all its 16 GiB.",
    )
    # On the device "meta" a tensor has a shape and takes no memory.
    table = torch.nn.Embedding(32000, 4096, dtype=torch.float16, device="meta").weight
    lab.predict(
        "embedding-256mb",
        "an embedding of 32,000 tokens x 4,096 numbers of 16 bits",
        predicted=32000 * 4096 * 2 / 1e6,
        measured=table.nbytes / 1e6,
        source_says=256.0,
        unit="MB",
        tolerance=0.03,
        note=f"{table.nbytes / 2**20:.0f} MiB. 256 comes out if a MB has 1,000 x 1,024 bytes: a third unit.",
    )


def tell_kv(lab: Lab) -> None:
    import torch

    lab.title("KV cache of one token")
    names = ("llama-2-7b", "llama-3-8b")
    lab.say("""Each token leaves a key and a value in every layer: 2 x layers x KV heads x head size x bytes.
        Llama-2 7B and Llama-3 8B both have 32 layers and heads of 128 numbers, but Llama-3 keeps keys and
        values for 8 heads instead of 32 (grouped-query attention, phase 2).""")
    caches = [torch.empty(2, s.num_layers, s.num_kv_heads, s.head_dim, dtype=torch.float16, device="meta")
              for s in (SHAPES[n] for n in names)]  # fmt: skip
    lab.predict(
        "kv-per-token",
        "KV cache of one token in FP16: Llama-2 7B, Llama-3 8B",
        predicted=[kv_per_token(SHAPES[n]) // 1024 for n in names],
        measured=[cache.nbytes // 1024 for cache in caches],
        unit="KiB",
        note="Measured: the size of a tensor [2, layers, KV heads, head size]. A quarter of the heads, a "
        "quarter of the memory, four times the users.",
    )


def tell_your_model(lab: Lab, shape: ModelShape, card: Card, precision: str) -> None:
    a = lab.args
    kv_bytes, price = KV_BYTES[a.kv], card.dollars_per_hour
    lab.title(f"{shape.name} on one {card.title}")
    lab.say(f"""{shape.num_parameters:,} parameters; {kv_per_token(shape, kv_bytes):,} bytes of KV cache per
        token in {a.kv}. The card offers {both(card.memory_bytes)}; {USABLE:.0%} of it is for weights and
        cache, the rest for intermediate results (activations) and for CUDA, the GPU's software.""")
    rows = []
    for p in ("FP32", "FP16", "FP8", "Q4_K_M"):
        weights, room = weight_bytes(shape, p), bytes_for_kv(shape, card, p)
        users = users_that_fit(shape, card, a.context, p, kv_bytes)
        tokens = max(0, room) // kv_per_token(shape, kv_bytes)
        each = price / users if users else None
        fits = [room / GB, room / GIB, tokens, users, each] if room > 0 else [None, None, 0, 0, None]
        rows.append([p, weights / GB, weights / GIB, *fits])
    lab.table(
        f"Users of {a.context:,} tokens each",
        ["weights", "GB", "GiB", "GB for KV", "GiB for KV", "tokens of KV", "users", "$ per user-hour"],
        rows,
        note=f"FP16 stands for BF16 too, FP8 for INT8; -: does not fit. {card.title} at ${price:.2f} per hour, "
        "a rough cloud price. Users are counted as if each had filled the whole context"
        + (", tokens of KV as if no layer had a window." if any(shape.windows) else "."),
    )
    if bytes_for_kv(shape, card, precision) <= 0:
        lab.say(f"""{shape.name} in {precision} does not fit on one {card.title}: its weights take
            {both(weight_bytes(shape, precision))}, and {both(card.memory_bytes * USABLE)} are usable. The table above
            shows which precision fits, the one below which card. Or several cards hold a slice of every layer each.""")
        return
    users = users_that_fit(shape, card, a.context, precision, kv_bytes)
    if users:
        lab.say(f"""What it costs: {users:,} users share the card in {precision}. Each of them costs
            ${price / users:.2g} per hour, or ${720 * price / users:,.2f} per month (720 hours), if all stay.""")
    else:
        tokens = users_that_fit(shape, card, 1, precision, kv_bytes)
        lab.say(f"""The weights fit in {precision}, but no user with {a.context:,} tokens does: there is room
            for {tokens:,} tokens in all. A shorter --context, --kv FP8 or a larger card would do.""")


def tell_users(lab: Lab, shape: ModelShape, precision: str, cards: list[Card]) -> None:
    lab.title("How many users fit on a card?")
    kv_bytes = KV_BYTES[lab.args.kv]
    contexts = [c for c in CONTEXTS if c <= shape.max_context] or [shape.max_context]
    rows = [
        [card.title, card.memory_bytes / GIB,
         *(users_that_fit(shape, card, c, precision, kv_bytes) for c in contexts)]
        for card in cards
    ]  # fmt: skip
    lab.table(f"Users of {shape.name} in {precision}, by tokens each",
              ["card", "GiB", *(f"{c:,}" for c in contexts)], rows,
              note="Twice the context, half the users" + (", or more: some layers keep a window only." if any(shape.windows) else "."))  # fmt: skip


def draw(lab: Lab, shape: ModelShape, card: Card, precision: str, others: list[ModelShape]) -> None:
    kv_bytes, context = KV_BYTES[lab.args.kv], lab.args.context
    users = users_that_fit(shape, card, context, precision, kv_bytes)
    finding = f"{users:,} users of {context:,} tokens" if users else f"no user of {context:,} tokens"
    fig, (left, right) = new_figure(
        f"{shape.name} in {precision} on one {card.title}: {finding}",
        f"Above: every card; below: one {card.title}, lines end where no user fits or at a model's longest context; "
        f"{USABLE:.0%} of a card is used; KV cache in {lab.args.kv}; computed",
        panels=2,
        size=(7.2, 8.6),
    )
    draw_cards(left, shape, precision)
    for color, marker, s in zip(COLORS, "os^Dv", [shape, *others], strict=False):
        if bytes_for_kv(s, card, precision) <= 0:
            continue
        points = [(c, users_that_fit(s, card, c, precision, kv_bytes)) for c in
                  (2**i for i in range(8, 18)) if c <= s.max_context]  # fmt: skip
        points = [(c, n) for c, n in points if n]
        if points:
            style = dict(lw=3, zorder=3) if s is shape else dict(lw=1.5)
            right.plot(*zip(*points, strict=True), marker=marker, color=color, label=s.name, **style)
    if right.lines:
        right.set(xscale="log", yscale="log", xlabel="tokens of each user", ylabel="users")
        right.set_xticks([256, 1024, 4096, 16384, 65536])
        plain_numbers(right)
        right.legend(fontsize=9, frameon=False)
    else:
        right.axis("off")
        right.text(0.5, 0.5, f"none of these models fits\non one {card.title} in {precision}", ha="center")
    lab.figure(fig, "gpu_memory_equation")


def draw_cards(ax: Axes, shape: ModelShape, precision: str) -> None:
    weights = weight_bytes(shape, precision) / GIB
    for y, card in enumerate(reversed(CARDS.values())):
        total = card.memory_bytes / GIB
        room = total * USABLE - weights
        if room > 0:
            ax.barh(y, weights, color=BLUE, height=0.6)
            ax.barh(y, room, left=weights, color=GREEN, height=0.6)
            ax.barh(y, total * (1 - USABLE), left=total * USABLE, color=GREY, height=0.6)
            ax.text(total + 1.5, y, f"{room:.1f} for KV", va="center", fontsize=9)
        else:
            ax.barh(y, total, color=GREY, height=0.6, alpha=0.35)
            ax.text(total + 1.5, y, "does not fit", va="center", fontsize=9, color=RED)
    ax.set_yticks(range(len(CARDS)), [c.title for c in reversed(CARDS.values())])
    ax.set(xlabel="GiB", xlim=(0, 1.22 * max(c.memory_bytes for c in CARDS.values()) / GIB))
    ax.grid(axis="y", visible=False)
    for color, label in ((BLUE, "weights"), (GREEN, "KV cache"), (GREY, "margin")):
        ax.barh(0, 0, color=color, label=label)
    ax.legend(loc="upper right", fontsize=9, frameon=False)
