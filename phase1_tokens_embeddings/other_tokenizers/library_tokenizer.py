"""Tokenizers of other kinds, computed by the library `tokenizers`, behind the methods of our own.

Llama 2, Mistral and Gemma have tokenizers that were made with SentencePiece. They learn merges as ours does, and differ
in three things:

- They begin with characters, not with bytes. An unknown character falls back to tokens such as <0xE2>, which stand for
  one byte each.
- A space is written as "▁", a character like any other. There is no split pattern: Gemma merges across words
  wherever its merges say so.
- Llama 2 puts a space before each text, so that the first word of a text is the token that it is inside one. Decoding takes
  that space away again.

Byte-level tokenizers with another split pattern than ours are read here, too: GPT-4o's, or DeepSeek's, which cuts in three rounds.

Source: Kudo and Richardson, "SentencePiece" (2018); the library's `models::bpe`, `decoders::byte_fallback`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

import regex

from labkit.foreign import quoted, read_json, visible
from phase1_tokens_embeddings.tokens.bpe import without_lone_surrogates
from phase1_tokens_embeddings.tokens.tokenizer import BPETokenizer, any_of, check_allowed
from phase1_tokens_embeddings.tokens.tokenizer_files import CHAR_TO_BYTE, MAX_TOKENIZER_BYTES, OtherKind

SPACE = "▁"  # U+2581, which SentencePiece writes for a space
_BYTE = regex.compile(r"<0x([0-9A-F]{2})>")
KINDS = ("BPE", "Unigram")


class LibraryTokenizer:
    """A tokenizer.json that the library `tokenizers` encodes with. Decoding is ours: a table of the bytes of each token.

    Attributes:
        token_bytes, special_tokens, added_tokens: as in `BPETokenizer`.
        drops_first_space: decoding removes the space that encoding put before the text.

    Raises:
        ValueError: a kind whose tokens are not pieces of the text, such as BERT's, which drops capital letters.
    """

    def __init__(self, document: dict[str, Any], hub: Any) -> None:
        # Finding special tokens is a setting of the library's object: two objects, so that threads need not wait.
        self._hub, self._distrusting_hub = hub, deepcopy(hub)
        self._distrusting_hub.encode_special_tokens = True  # as ordinary text, that is
        to_bytes, self.drops_first_space = _decoding(document.get("decoder"))
        added = document.get("added_tokens") or []
        self.special_tokens: dict[str, int] = {t["content"]: t["id"] for t in added if t["special"]}
        self.added_tokens: dict[str, int] = {t["content"]: t["id"] for t in added if not t["special"]}
        self._special_ids = frozenset(self.special_tokens.values())
        names: dict[int, str] = {i: name for name, i in hub.get_vocab(with_added_tokens=True).items()}
        self.token_bytes = [to_bytes(names.get(i, "")) for i in range(max(names) + 1)]

    @classmethod
    def from_file(cls, path: str | Path) -> LibraryTokenizer:
        """
        Raises:
            ValueError: not a tokenizer.json, or of a kind that is not read here.
        """
        from tokenizers import Tokenizer

        path = Path(path)
        try:
            document = read_json(path, MAX_TOKENIZER_BYTES)
            if (kind := document["model"].get("type", "BPE")) not in KINDS:
                raise ValueError(f"its model is {visible(kind)}; read here are {' and '.join(KINDS)}")
            return cls(document, Tokenizer.from_file(str(path)))
        except ValueError as error:
            raise ValueError(f"{visible(path)} cannot be used: {error}") from None
        except Exception as error:  # whatever the library finds wrong, it raises plain Exception
            what = visible(f"{type(error).__name__}: {error}", 120)
            raise ValueError(f"{visible(path)} is no tokenizer.json that can be read: {what}") from None

    # These need the table of the bytes and the names of the special tokens, no more.
    vocab_size = BPETokenizer.vocab_size
    eos_token_id = BPETokenizer.eos_token_id
    decode_bytes = BPETokenizer.decode_bytes

    def encode(self, text: str, allowed_special: Collection[str] | Literal["all"] = frozenset()) -> list[int]:
        """As `BPETokenizer.encode`."""
        allowed = check_allowed(allowed_special, self.special_tokens)
        text = without_lone_surrogates(text)
        if len(allowed) in (0, len(self.special_tokens)):
            return self._encode(text, trusting=bool(allowed))
        ids: list[int] = []
        for piece in regex.split(f"({any_of(allowed)})", text):
            ids += [self.special_tokens[piece]] if piece in allowed else self._encode(piece, trusting=False)
        return ids

    def _encode(self, text: str, trusting: bool) -> list[int]:
        hub = self._hub if trusting else self._distrusting_hub
        try:
            return hub.encode(text, add_special_tokens=False).ids
        # A panic of the library's is no Exception; a pattern that tries too many ways is one.
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            raise ValueError(f"this tokenizer cannot encode the text: {visible(error, 120)}") from None

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Turn ids back into text. Bytes that form no character become U+FFFD."""
        text = self.decode_bytes(ids, skip_special_tokens).decode("utf-8", errors="replace")
        return text[1:] if self.drops_first_space and text.startswith(" ") else text


def read_tokenizer(path: str | Path) -> BPETokenizer | LibraryTokenizer:
    """A tokenizer.json: by our own code if it is of that kind, otherwise with the library.

    Raises:
        FileNotFoundError: no such file. ValueError: damaged, or of an unknown kind.
    """
    try:
        return BPETokenizer.from_file(path)
    except OtherKind:
        return LibraryTokenizer.from_file(path)


def _decoding(decoder: dict[str, Any] | None) -> tuple[Callable[[str], bytes], bool]:
    """Two things: a function from the name of a token to bytes, and True if a text loses its first space."""
    steps = [decoder] if decoder else []
    if steps and steps[0]["type"] == "Sequence":
        steps = steps[0]["decoders"]
    match [step["type"] for step in steps]:
        case ["ByteLevel"]:
            return _byte_level, False
        case ["Replace", "ByteFallback", "Fuse"] if _replaces_space(steps[0]):
            return _sentence_piece, False
        case ["Replace", "ByteFallback", "Fuse", "Strip"] if _replaces_space(steps[0]) and _drops_one(
            steps[3]
        ):
            return _sentence_piece, True
        case ["Metaspace"] if steps[0].get("replacement") == SPACE:
            return _sentence_piece, steps[0].get("prepend_scheme", "always") != "never"
        case kinds:
            raise ValueError(
                f"its tokens become text by {quoted(' + '.join(kinds) or 'no decoder')}; read here are ByteLevel, "
                "Metaspace, and SentencePiece's Replace + ByteFallback + Fuse"
            )


def _replaces_space(step: dict[str, Any]) -> bool:
    return step["pattern"] == {"String": SPACE} and step["content"] == " "


def _drops_one(step: dict[str, Any]) -> bool:
    return (step["content"], step["start"], step["stop"]) == (" ", 1, 0)


def _sentence_piece(name: str) -> bytes:
    """
    >>> _sentence_piece("▁dog"), _sentence_piece("<0xE2>")
    (b' dog', b'\\xe2')
    """
    if match := _BYTE.fullmatch(name):
        return bytes([int(match[1], 16)])
    return name.replace(SPACE, " ").encode()


def _byte_level(name: str) -> bytes:
    if all(char in CHAR_TO_BYTE for char in name):
        return bytes(CHAR_TO_BYTE[char] for char in name)
    return name.encode()  # a special token
