"""Step through decoding: the tokens that are computed again without a cache, and those that a cache keeps."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import torch

from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.model import ContiguousKVCache, Transformer
from web.pieces.piece import Piece, in_words

SHOWN_NUMBERS = 3  # of each key
MOST_TOKENS = 60


@dataclass(frozen=True)
class Moment:
    """One step of both ways.

    Attributes:
        computed_naive, computed_cached: tokens that went through the model in this step.
        stored, room: tokens in the cache after it, and places that it has.
        bytes_used, bytes_reserved: the cache's own count.
        said: the token that both ways chose.
        choices: the likeliest tokens, with their probabilities.
    """

    computed_naive: int
    computed_cached: int
    stored: int
    room: int
    bytes_used: int
    bytes_reserved: int
    said: str
    choices: list[tuple[str, float]]


@dataclass
class Decoding:
    """A text as it was written, step by step, twice.

    Attributes:
        tokens: all of it, the prompt first.
        keys: of each token that went through the model, the first numbers of its key (first layer, first head).
    """

    prompt_tokens: int
    tokens: list[str]
    keys: list[list[float]] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)

    @classmethod
    @torch.inference_mode()
    def of(cls, model: Transformer, tok: BPETokenizer, prompt: str, new_tokens: int) -> Decoding:
        """Write `new_tokens` tokens, the likeliest each time, with a cache. Without one they are the same (phase 2's tests prove it).

        Raises:
            ValueError: an empty prompt, no new token, or a text too long to be seen.
        """
        ids = tok.encode(prompt)
        if not ids or new_tokens < 1 or len(ids) + new_tokens > MOST_TOKENS:
            raise ValueError(
                f"{len(ids)} prompt tokens and {new_tokens} new ones: at least one of each, at most {MOST_TOKENS} in all"
            )
        c, new = model.config, list(ids)
        cache = ContiguousKVCache(c)
        cache.FIRST_ROOM = 8  # so little that the reader sees it double
        run = cls(len(ids), [tok.decode([i]) for i in ids])
        for _ in range(new_tokens):
            at = torch.arange(cache.num_tokens, cache.num_tokens + len(new))
            logits = model.logits(model(torch.tensor(new), at, cache)[-1:])[0]
            chosen = int(logits.argmax())
            best = logits.float().softmax(-1).topk(4)
            run.moments.append(
                Moment(
                    len(ids), len(new), cache.num_tokens,
                    cache.num_tokens * cache.bytes_reserved // cache.bytes_used,
                    cache.bytes_used, cache.bytes_reserved, tok.decode([chosen]),
                    [(tok.decode([i]), round(p, 4)) for i, p in zip(best.indices.tolist(), best.values.tolist())],
                )
            )  # fmt: skip
            ids.append(chosen)
            run.tokens.append(run.moments[-1].said)
            new = [chosen]
        no_token = torch.empty(0, c.num_kv_heads, c.head_dim)
        keys, _ = cache.append(0, no_token, no_token)  # returns all keys of the first layer
        run.keys = [[round(x, 2) for x in key] for key in keys[:, 0, :SHOWN_NUMBERS].tolist()]
        return run


def decoding_piece(run: Decoding) -> Piece:
    """A text being written, to go through forwards and backwards."""
    lines = [f"{'step':>4}  {'naive':>6}  {'cached':>6}  {'in the cache':>12}  {'room':>5}  next token"]
    for number, m in enumerate(run.moments, 1):
        lines.append(
            f"{number:>4}  {m.computed_naive:>6}  {m.computed_cached:>6}  {m.stored:>12}  {m.room:>5}  {m.said!r}"
        )
    naive, cached = (sum(getattr(m, f"computed_{way}") for m in run.moments) for way in ("naive", "cached"))
    lines.append(f" all  {naive:>6}  {cached:>6}")
    what = "Tokens computed in each step, without a cache and with one:"
    return Piece("decoding", asdict(run), in_words("A text being written, to step through.", what, lines))
