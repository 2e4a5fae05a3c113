"""The tokenizer that the rest of the course uses: text -> ids -> text, whole or streamed.

The algorithm is in `bpe.py`. This file adds a vocabulary, special tokens and error messages. The two file formats, Hugging
Face's `tokenizer.json` and the rank tables of tiktoken, are in `tokenizer_files.py`.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Literal

import regex

from labkit.foreign import quoted, visible
from phase1_tokens_embeddings.tokens.bpe import (
    GPT2_SPLIT_PATTERN,
    Pair,
    apply_merges,
    count_words,
    learn_merges,
    split_words,
    without_lone_surrogates,
)
from phase1_tokens_embeddings.tokens.tokenizer_files import (
    from_tiktoken,
    read_tokenizer_json,
    to_tokenizer_json,
)

END_OF_TEXT = "<|endoftext|>"
# Words met once are remembered. Both limits keep a long-running server's memory bounded.
_CACHE_WORDS = 100_000
_CACHE_WORD_LENGTH = 64  # characters


class BPETokenizer:
    """A byte-level BPE tokenizer.

    Args:
        token_bytes: `token_bytes[i]` holds the bytes of token i, special tokens included (as UTF-8).
        merges: pairs of ids in the order they were learned. The merged token is found by its bytes.
        special_tokens: name -> id. They have a meaning for the model (such as the end of a text),
            and `encode` never produces them from ordinary text.
        split_pattern: regular expression that splits text into words.
        whole_words_first: True: a word that is itself a token is encoded as this token, whatever the merges give (Llama 3).
        unicode_form: the Unicode normal form into which text is brought first, such as "NFC" (Qwen): "e"
            followed by a combining accent becomes the one character "é". None leaves text as it is.
        added_tokens: name -> id. Added to the vocabulary like special tokens, but ordinary: `encode` finds them in
            every text, and answers show them (Qwen's "<think>").

    Raises:
        ValueError: a single byte has no token, a merge gives bytes that are not a token, or the split pattern has groups or is not a
            regular expression.

    >>> tok = BPETokenizer.train(["low low lower"], vocab_size=260)
    >>> [tok.decode([i]) for i in tok.encode("lower low")]
    ['low', 'e', 'r', ' low']
    """

    drops_first_space = False  # `encode` puts no space before a text

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        merges: Sequence[Pair],
        special_tokens: dict[str, int],
        split_pattern: str = GPT2_SPLIT_PATTERN,
        whole_words_first: bool = False,
        unicode_form: Literal["NFC", "NFD", "NFKC", "NFKD"] | None = None,
        added_tokens: dict[str, int] | None = None,
    ) -> None:
        self.token_bytes = list(token_bytes)
        self.merges = list(merges)
        self.special_tokens = dict(special_tokens)
        self.split_pattern = split_pattern
        self.whole_words_first = whole_words_first
        self.unicode_form = unicode_form
        self.added_tokens = dict(added_tokens or {})

        self._special_ids = frozenset(self.special_tokens.values())
        named = self._special_ids.union(self.added_tokens.values())
        self.id_of_bytes = {b: i for i, b in enumerate(self.token_bytes) if i not in named}
        missing = [b for b in range(256) if bytes([b]) not in self.id_of_bytes]
        if missing:
            raise ValueError(
                f"the vocabulary lacks {len(missing)} of the 256 single bytes (first: {missing[0]}): "
                "not a byte-level BPE tokenizer"
            )
        self._byte_id = [self.id_of_bytes[bytes([b])] for b in range(256)]
        self._merge_rank: dict[Pair, tuple[int, int]] = {}  # pair -> (rank, id of the merged token)
        for rank, (a, b) in enumerate(self.merges):
            merged = self.token_bytes[a] + self.token_bytes[b]
            if merged not in self.id_of_bytes:
                raise ValueError(
                    f"merge number {rank} makes {quoted(merged)}, which the vocabulary does not hold"
                )
            self._merge_rank[a, b] = (rank, self.id_of_bytes[merged])
        try:
            self._split = regex.compile(split_pattern)
        except regex.error as error:
            raise ValueError(
                f"the split pattern {quoted(split_pattern)} is no regular expression: {error}"
            ) from None
        if self._split.groups:  # `findall` would return parts of a match
            raise ValueError(
                f"the split pattern {quoted(split_pattern)} must match every character, without groups"
            )
        self._word_cache: dict[str, list[int]] = {}

    # ------------------------------------------------------------------ making one

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocab_size: int,
        special_tokens: Sequence[str] = (END_OF_TEXT,),
        on_merge: Callable[[int, Pair, int], None] | None = None,
    ) -> BPETokenizer:
        """Learn a vocabulary from texts: 256 bytes, then merges, then the special tokens.

        Args:
            texts: training texts. Special tokens inside them are removed and not learned.
            vocab_size: number of tokens wanted, bytes and special tokens included. If the texts have
                too few pairs to merge, the vocabulary is smaller.
            on_merge: called as `on_merge(i, (left id, right id), count)` after each merge.

        Raises:
            ValueError: `vocab_size` leaves no room for the 256 bytes and the special tokens, a special
                token is empty or given twice, or `texts` is one string.
        """
        if isinstance(texts, str):  # it would be taken as a list of single characters
            raise ValueError("texts is a single string: give a list of texts, such as [text]")
        if "" in special_tokens or len(set(special_tokens)) < len(special_tokens):
            raise ValueError(f"special tokens must be different and not empty: {list(special_tokens)}")
        num_merges = vocab_size - 256 - len(special_tokens)
        if num_merges < 0:
            raise ValueError(
                f"vocab_size {vocab_size} is too small: 256 bytes and {len(special_tokens)} special "
                f"tokens need at least {256 + len(special_tokens)}"
            )
        if special_tokens:
            cut = regex.compile(any_of(special_tokens))
            texts = (piece for text in texts for piece in cut.split(text))
        merges = learn_merges(count_words(texts), num_merges, on_merge)

        token_bytes = [bytes([b]) for b in range(256)]
        for a, b in merges:
            token_bytes.append(token_bytes[a] + token_bytes[b])
        specials = {name: len(token_bytes) + i for i, name in enumerate(special_tokens)}
        token_bytes += [name.encode("utf-8") for name in special_tokens]
        return cls(token_bytes, merges, specials)

    @classmethod
    def from_file(cls, path: str | Path) -> BPETokenizer:
        """Read a Hugging Face `tokenizer.json` of the byte-level BPE kind (GPT-2, Llama 3, Qwen).

        Its post-processor is ignored: if a model needs a token for the beginning of a text, the caller adds
        this token.

        Raises:
            FileNotFoundError: no such file.
            ValueError: not JSON, or damaged. OtherKind: the file needs a step that byte-level BPE does not have.
        """
        return read_tokenizer_json(cls, Path(path))

    @classmethod
    def from_tiktoken(cls, name: str = "gpt2") -> BPETokenizer:
        """Load a vocabulary of tiktoken, such as "gpt2" (50,257 tokens).

        tiktoken downloads the vocabulary once and caches it; `TIKTOKEN_CACHE_DIR` sets the folder.

        Raises:
            ValueError: tiktoken has no vocabulary of this name.
            ConnectionError: the vocabulary is not on this machine and cannot be downloaded.
        """
        return from_tiktoken(cls, name)

    def save(self, path: str | Path) -> None:
        """Write a Hugging Face `tokenizer.json`: the `tokenizers` library can load it."""
        document = to_tokenizer_json(self)
        Path(path).write_text(json.dumps(document, ensure_ascii=False, indent=1), encoding="utf-8")

    # ------------------------------------------------------------------ using it

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""
        return len(self.token_bytes)

    @property
    def eos_token_id(self) -> int | None:
        """Id of `<|endoftext|>`, or None if this vocabulary has no such token."""
        return self.special_tokens.get(END_OF_TEXT)

    def encode(self, text: str, allowed_special: Collection[str] | Literal["all"] = frozenset()) -> list[int]:
        """Turn text into token ids.

        By default special tokens are not recognised in text: a user who types "<|endoftext|>" gets
        the ids of those thirteen characters and cannot end the model's text. Name the tokens
        to recognise in `allowed_special`, or pass "all".

        A lone surrogate (half of a UTF-16 pair, not a character) becomes U+FFFD, as in tiktoken.
        """
        allowed = check_allowed(allowed_special, self.special_tokens)
        found = self.added_tokens | {name: self.special_tokens[name] for name in allowed}
        if not found:
            return self._encode_ordinary(text)
        ids: list[int] = []
        for piece in regex.split(f"({any_of(found)})", text):
            if piece in found:
                ids.append(found[piece])
            else:
                ids.extend(self._encode_ordinary(piece))
        return ids

    def _encode_ordinary(self, text: str) -> list[int]:
        text = without_lone_surrogates(text)
        if self.unicode_form:
            text = unicodedata.normalize(self.unicode_form, text)
        ids: list[int] = []
        for word in split_words(self._split, text):
            known = self._word_cache.get(word)
            if known is None:
                known = self._encode_word(word.encode("utf-8"))
                if len(word) <= _CACHE_WORD_LENGTH:
                    if len(self._word_cache) >= _CACHE_WORDS:
                        self._word_cache.clear()
                    self._word_cache[word] = known
            ids.extend(known)
        return ids

    def _encode_word(self, word: bytes) -> list[int]:
        if self.whole_words_first and word in self.id_of_bytes:
            return [self.id_of_bytes[word]]
        return apply_merges([self._byte_id[b] for b in word], self._merge_rank)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Turn ids back into text. Bytes that do not form a character become U+FFFD."""
        return self.decode_bytes(ids, skip_special_tokens).decode("utf-8", errors="replace")

    def decode_bytes(self, ids: Iterable[int], skip_special_tokens: bool = False) -> bytes:
        """The bytes of the tokens, joined.

        Raises:
            ValueError: an id is outside the vocabulary.
        """
        skipped = self._special_ids if skip_special_tokens else ()
        parts = []
        for i in ids:
            if not 0 <= i < len(self.token_bytes):
                raise ValueError(
                    f"token id {i} is outside the vocabulary: ids go from 0 to {self.vocab_size - 1}"
                )
            if i not in skipped:
                parts.append(self.token_bytes[i])
        return b"".join(parts)


def check_allowed(allowed: Collection[str] | Literal["all"], special_tokens: Collection[str]) -> list[str]:
    """The names in `allowed_special`, "all" expanded.

    Raises:
        ValueError: a name is not a special token of this vocabulary.
    """
    if isinstance(allowed, str):
        allowed = special_tokens if allowed == "all" else [allowed]
    if unknown := [name for name in allowed if name not in special_tokens]:
        known = ", ".join(special_tokens) or "none"
        raise ValueError(
            f"{quoted(unknown[0])} is not a special token of this vocabulary; it has: {visible(known, 200)}"
        )
    return list(allowed)


def any_of(names: Iterable[str]) -> str:
    """A regular expression for any of these strings; if several match, the longest is taken."""
    return "|".join(regex.escape(name) for name in sorted(names, key=len, reverse=True))
