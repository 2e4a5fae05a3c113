"""The division of a context into splits, and the share of a card that they fill."""

from phase1_tokens_embeddings.weights import cards
from phase5_real_gpu.kernels.split_rule import Splits, choose_splits
from web.pieces.piece import Piece, in_words

# Programs of the decode kernel, head size 128, that each card holds at a time: multiprocessors times what fits (compile_report.py).
CARDS = {
    "T4": 4 * cards.CARDS["t4"].multiprocessors,
    "A100": 2 * cards.CARDS["a100-80"].multiprocessors,
    "H100": 3 * cards.CARDS["h100"].multiprocessors,
    "B200": 3 * 148,
}
KV_HEADS = 8
USERS = [1, 2, 4, 8, 16, 32, 64, 128, 256]
TOKENS = [256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072]
TILES = {"T4": 16}  # tokens per tile where Triton writes no matrix instructions; 64 elsewhere (`tile_tokens`)


def splits_for(card: str, users: int, tokens: int) -> Splits:
    """Apply the rule of the decode kernel to requests with contexts of the same length."""
    return choose_splits([tokens] * users, KV_HEADS, CARDS[card], TILES.get(card, 64))


def splits_piece(card: str = "H100", users: int = 1, tokens: int = 32768) -> Piece:
    """Sliders for requests and their contexts; the splits, the programs and the rounds that the rule makes of them.

    Raises:
        ValueError: a value that the sliders do not have.
    """
    for value, known in ((card, list(CARDS)), (users, USERS), (tokens, TOKENS)):
        if value not in known:
            raise ValueError(f"{value!r} is not on the slider: use one of {known}")
    data = {
        "kv_heads": KV_HEADS,
        "cards": [{"name": name, "resident": count} for name, count in CARDS.items()],
        "users": USERS,
        "tokens": TOKENS,
        "rule": [[[list(splits_for(name, u, t)) for t in TOKENS] for u in USERS] for name in CARDS],
        "start": {"card": list(CARDS).index(card), "users": users, "tokens": tokens},
    }
    lines = [f"{'requests':>8}  {'tokens':>8}  {'splits':>6}  {'tokens per split':>16}"]
    for u in (1, 8, 64):
        for t in (2048, 32768):
            num_splits, size = splits_for(card, u, t)
            lines.append(f"{u:>8}  {t:>8,}  {num_splits:>6}  {size:>16,}")
    what = f"The rule on a card of type {card}, {KV_HEADS} KV heads:"
    return Piece("splits", data, in_words("Sliders.", what, lines))
