"""Decode a stream of tokens into text, up to a stop string."""

import codecs
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, Protocol


class Tokenizer(Protocol):
    """The interface of a tokenizer for the rest of the course. `BPETokenizer` implements it.

    Attributes:
        token_bytes: the bytes of token i at index i.
        special_tokens, added_tokens: name -> id.
        drops_first_space: True if `decode` removes the space that `encode` put before the text.
    """

    token_bytes: list[bytes]
    special_tokens: dict[str, int]
    added_tokens: dict[str, int]
    drops_first_space: bool

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_token_id(self) -> int | None: ...

    def encode(
        self, text: str, allowed_special: Collection[str] | Literal["all"] = frozenset()
    ) -> list[int]: ...

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str: ...

    def decode_bytes(self, ids: Iterable[int], skip_special_tokens: bool = False) -> bytes: ...


class StreamDecoder:
    """Turns tokens into text as they arrive, and never shows half a character.

    A token holds bytes, not characters: an emoji of four bytes may arrive in three tokens. Decoding
    each token by itself would show "�" three times. So bytes that may be the beginning of a
    character are held back until the other bytes arrive.

    Args:
        skip_special_tokens: leave special tokens out of the text.
        continues: True if the text continues a prompt: its first space is kept, even if the tokenizer drops
            the first space of a text.

    >>> tok = BPETokenizer.train([""], vocab_size=257)
    >>> stream = StreamDecoder(tok)
    >>> [stream.push(i) for i in tok.encode("é!")]
    ['', 'é', '!']
    """

    def __init__(
        self, tokenizer: Tokenizer, skip_special_tokens: bool = False, continues: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._drops_space = tokenizer.drops_first_space and not continues  # until the first character is here

    def push(self, token_id: int) -> str:
        """Add one token; return the characters that are now complete (possibly "")."""
        text = self._utf8.decode(self._tokenizer.decode_bytes([token_id], self._skip))
        if self._drops_space and text:
            self._drops_space = False
            return text.removeprefix(" ")
        return text

    def finish(self) -> str:
        """End of the tokens: return the text still held back ("�" for an incomplete character)."""
        return self._utf8.decode(b"", final=True)


class StopStrings:
    """Finds the strings that end an answer in a stream of text.

    A stop string may begin in one token and end three tokens later. So text that might be the beginning of
    a stop string is held back until later text decides: a user must never see part of a stop string. All other text is returned at once.

    Args:
        keep: True: the text includes the stop string.

    >>> stops = StopStrings(["END"])
    >>> stops.push("the E"), stops.push("ND of it"), stops.found
    ('the ', '', 'END')
    """

    def __init__(self, stop: Sequence[str], keep: bool = False) -> None:
        self._stop, self._keep, self._held = stop, keep, ""
        self.found: str | None = None  # the stop string that ended the text

    def push(self, new: str, counts: bool = True) -> str:
        """Add text; return the text that cannot belong to a stop string. `counts`: False while the answer must not end yet."""
        if self.found is not None:
            return ""
        text, old = self._held + new, len(self._held)
        if counts:
            # A string ends in the new text: what is held back was searched before, or came too early to count.
            places = ((text.find(s, max(0, old + 1 - len(s))), -len(s), s) for s in self._stop)
            # The first to begin; of two that begin together the longer one.
            at, _, self.found = min((p for p in places if p[0] >= 0), default=(0, 0, None))
            if self.found is not None:
                self._held = ""
                return text[: at + len(self.found)] if self._keep else text[:at]
        # Characters at the end that may be the beginning of a stop string, but not all of it.
        sizes = (n for s in self._stop for n in range(1, min(len(s), len(text) + 1)) if text.endswith(s[:n]))
        certain = len(text) - max(sizes, default=0)
        self._held = text[certain:]
        return text[:certain]

    def finish(self) -> str:
        """End of the text: return the text still held back."""
        held, self._held = self._held, ""
        return held
