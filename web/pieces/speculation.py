"""Speculative decoding: the drafts of the small model, and how many of them are accepted."""

import torch

from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.model import NoCache, Transformer, generate_cached
from web.pieces.piece import Piece, in_words

NEW_TOKENS = 32


@torch.inference_mode()
def speculate(
    model: Transformer, draft: Transformer, prompt: list[int], num_drafts: int
) -> list[tuple[list[int], int]]:
    """Greedy speculation without a cache, in its plainest form: drafts of each step, and how many of them were accepted."""

    def answers(of: Transformer, ids: list[int], count: int) -> list[int]:
        return (
            of.logits(of(torch.tensor(ids), torch.arange(len(ids)), NoCache())[-count:]).argmax(-1).tolist()
        )

    ids, rounds = list(prompt), []
    while (left := len(prompt) + NEW_TOKENS - len(ids)) > 0:
        drafts: list[int] = []
        while len(drafts) < min(num_drafts, left - 1):
            drafts += answers(draft, ids + drafts, 1)
        said = answers(model, ids + drafts, len(drafts) + 1)
        accepted = next((i for i, token in enumerate(drafts) if token != said[i]), len(drafts))
        rounds.append((drafts, accepted))
        ids += said[: accepted + 1]
    return rounds


def speculation_piece(model: Transformer, draft: Transformer, tok: BPETokenizer) -> Piece:
    """Make the piece: a text that two models write together, step by step."""
    text, num_drafts = "Once upon a time there was a king who", 4
    ids = tok.encode(text)
    rounds, written = [], generate_cached(model, ids, NEW_TOKENS).token_ids
    for drafts, accepted in speculate(model, draft, ids, num_drafts):
        own = written[sum(r["accepted"] + 1 for r in rounds) + accepted]
        rounds.append(
            {"drafts": [tok.decode([i]) for i in drafts], "accepted": accepted, "own": tok.decode([own])}
        )
    lines = [
        f"{''.join(r['drafts'][: r['accepted']])!r} accepted, {''.join(r['drafts'][r['accepted'] :])!r} rejected, then {r['own']!r}"
        for r in rounds
    ]
    what = f"{NEW_TOKENS} tokens after “{text}” in {len(rounds)} steps of the large model."
    fallback = in_words(what, lines)
    return Piece("speculation", {"text": text, "num_drafts": num_drafts, "rounds": rounds}, fallback)
