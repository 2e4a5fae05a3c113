"""Type into a tokenizer: tokens, ids, and the merges of a word."""

from typing import Any

from phase1_tokens_embeddings.tokens import BPETokenizer
from phase1_tokens_embeddings.tokens.bpe import GPT2_SPLIT_PATTERN
from web.pieces.piece import Piece, in_words


def tokenizer_piece(tok: BPETokenizer, text: str = "The goat was waiting for a boat.") -> Piece:
    """Make a text field that shows its tokens at each key press.

    Args:
        tok: a tokenizer with GPT-2's split pattern.
        text: shown in the field at first.

    Raises:
        ValueError: a tokenizer with other rules.
    """
    if tok.split_pattern != GPT2_SPLIT_PATTERN or tok.whole_words_first or tok.unicode_form:
        raise ValueError("this piece cuts text as GPT-2 does: give a tokenizer without rules of its own")
    data = {"text": text, **tokenizer_data(tok)}
    ids = tok.encode(text)
    shown = "|".join(tok.token_bytes[i].decode("utf-8", errors="replace") for i in ids)
    lines = [shown, f"{len(text)} characters, {len(text.encode())} bytes, {len(ids)} tokens: {ids}"]
    use = "A field to type into, with the tokens of what is typed."
    return Piece("tokens", data, in_words(use, lines))


def tokenizer_data(tok: BPETokenizer) -> dict[str, Any]:
    """Return the data for web/model/tokenizer.js: the id of each byte, and the merges as [left, right, merged]."""
    return {
        "byte_ids": [tok.id_of_bytes[bytes([b])] for b in range(256)],
        "merges": [[a, b, tok.id_of_bytes[tok.token_bytes[a] + tok.token_bytes[b]]] for a, b in tok.merges],
    }
