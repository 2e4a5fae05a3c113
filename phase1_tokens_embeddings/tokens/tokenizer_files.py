"""Two ways to store a byte-level BPE tokenizer: Hugging Face's tokenizer.json, and tiktoken's ranks.

Both formats store the tokens and the order of the merges, and both need a workaround:

- JSON holds text, but a token may be any bytes. GPT-2 gave each byte a printable character of its
  own: visible ones stand for themselves, the others are shifted to code points from 256 on. A space becomes "Ġ".
- tiktoken stores only the finished tokens with their rank, not the pair each came from. Encoding
  the token with the merges learned before it recovers the pair: two pieces remain.

`BPETokenizer` calls these functions and passes itself as `kind`, the class to create.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from labkit.foreign import quoted, read_json, visible
from labkit.models import register_gpt2_vocabulary
from phase1_tokens_embeddings.tokens.bpe import GPT2_SPLIT_PATTERN, SPLIT_PATTERNS, Pair, apply_merges

Tok = TypeVar("Tok")  # BPETokenizer
MAX_TOKENIZER_BYTES = 50_000_000  # a vocabulary of 200,000 tokens takes 25 MB


class OtherKind(ValueError):
    """A tokenizer.json that needs a step which byte-level BPE does not have."""


def _printable_bytes() -> list[str]:
    """`table[b]` is the character that stands for byte b in tokenizer.json (GPT-2's encoder.py)."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = (b for b in range(256) if b not in visible)
    table = {b: chr(b) for b in visible} | {b: chr(256 + i) for i, b in enumerate(moved)}
    return [table[b] for b in range(256)]


BYTE_TO_CHAR = _printable_bytes()
CHAR_TO_BYTE = {char: byte for byte, char in enumerate(BYTE_TO_CHAR)}


def printable(token: bytes) -> str:
    """
    >>> printable(b" dog")
    'Ġdog'
    """
    return "".join(BYTE_TO_CHAR[b] for b in token)


def to_tokenizer_json(tok: Any) -> dict[str, Any]:
    """The tokenizer as a tokenizer.json document (the format of Hugging Face's `tokenizers`).

    Raises:
        ValueError: a special token has the name of an ordinary token, such as "é", the format's name for the
            single byte E9. The format identifies tokens by name.
    """
    added = tok.special_tokens | tok.added_tokens
    names = [printable(b) for b in tok.token_bytes]
    vocab = {name: i for i, name in enumerate(names) if i not in added.values()}
    if taken := [name for name in added if name in vocab]:
        raise ValueError(
            f"tokenizer.json cannot hold the special token {quoted(taken[0])}: a token has that name"
        )
    last = max(vocab.values())  # the library continues numbering from here, so ids in between are named here
    vocab |= {name: i for name, i in added.items() if i < last}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    if tok.split_pattern == GPT2_SPLIT_PATTERN:
        split: dict[str, Any] = byte_level | {"use_regex": True}
    else:
        regex = {"Regex": tok.split_pattern}
        by_pattern = {"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False}
        split = {"type": "Sequence", "pretokenizers": [by_pattern, byte_level | {"use_regex": False}]}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": name, **plain, "special": name in tok.special_tokens}
            for name, i in sorted(added.items(), key=lambda item: item[1])
        ],
        "normalizer": {"type": tok.unicode_form} if tok.unicode_form else None,
        "pre_tokenizer": split,
        "post_processor": None,
        "decoder": byte_level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": tok.whole_words_first,
            "vocab": vocab,
            "merges": [[names[a], names[b]] for a, b in tok.merges],
        },
    }


def read_tokenizer_json(kind: type[Tok], path: Path) -> Tok:
    """See `BPETokenizer.from_file`.

    A step that is not implemented here is refused, because ignoring it would silently give wrong ids.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no tokenizer at {visible(path)}: expected a file called tokenizer.json")
    try:
        return kind(*_constructor_arguments(read_json(path, MAX_TOKENIZER_BYTES)))
    except ValueError as error:
        kind_of_error = OtherKind if isinstance(error, OtherKind) else ValueError
        raise kind_of_error(f"{visible(path)} cannot be used: {error}") from None
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        what = visible(repr(error), 90)
        raise ValueError(f"{visible(path)} is not a tokenizer.json of the BPE kind: {what}") from None


def _constructor_arguments(document: dict[str, Any]) -> tuple[Any, ...]:
    model = document["model"]
    if (name := model.get("type", "BPE")) != "BPE":
        raise OtherKind(
            f"its model is {visible(name)}; this course reads byte-level BPE (GPT-2, Llama 3, Qwen)"
        )
    for option in ("byte_fallback", "dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option):
            raise OtherKind(f"its model asks for {option}, which byte-level BPE as in GPT-2 does not have")

    unicode_form = _unicode_form(document.get("normalizer"))
    split_pattern = _split_pattern(document.get("pre_tokenizer"))
    vocab, listed = model["vocab"], document.get("added_tokens") or []
    for option in ("single_word", "lstrip", "rstrip", *(["normalized"] if unicode_form else [])):
        if asking := [t["content"] for t in listed if t.get(option)]:
            raise OtherKind(f"its added token {quoted(asking[0])} is found in a way of its own ({option})")
    special = {t["content"]: t["id"] for t in listed if t.get("special", True)}
    added = {t["content"]: t["id"] for t in listed if not t.get("special", True)}
    named = special | added
    if not all(type(i) is int for i in [*vocab.values(), *named.values()]):
        raise ValueError("an id of its vocabulary is no whole number")
    if "" in named or len(set(named.values())) < len(listed):
        raise ValueError("its added tokens must have names, and ids of their own")
    tokens: dict[int, bytes] = {}
    for name, i in vocab.items():
        if name not in named:
            tokens[i] = bytes_of(name)
        elif named[name] != i:
            raise ValueError(
                f"its added token {quoted(name)} has the id {named[name]}, but {i} in the vocabulary"
            )
    for name, i in named.items():
        tokens[i] = name.encode("utf-8")
    if sorted(tokens) != list(range(len(tokens))):
        hole = next(i for i in range(len(tokens)) if i not in tokens)
        raise ValueError(f"id {hole} has no token: the vocabulary has a hole")

    return (
        [tokens[i] for i in range(len(tokens))],
        merge_pairs(model["merges"], vocab),
        special,
        split_pattern,
        bool(model.get("ignore_merges", False)),
        unicode_form,
        added,
    )


def merge_pairs(merges: Iterable[Any], ids: Mapping[str, int]) -> list[Pair]:
    """Merges as written in files, ["a", "b"] or (in older files) "a b" -> pairs of ids.

    Raises:
        ValueError: a merge does not join two tokens.
    """
    pairs: list[Pair] = []
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if len(pair) != 2 or pair[0] not in ids or pair[1] not in ids:
            raise ValueError(f"the merge {quoted(merge)} does not join two tokens of the vocabulary")
        pairs.append((ids[pair[0]], ids[pair[1]]))
    return pairs


def bytes_of(name: str) -> bytes:
    """The reverse of `printable`."""
    try:
        return bytes(CHAR_TO_BYTE[char] for char in name)
    except KeyError as error:
        raise OtherKind(
            f"not byte-level: in its token {quoted(name)} the character {error} stands for no byte"
        ) from None


def _split_pattern(pre_tokenizer: dict[str, Any] | None) -> str:
    """GPT-2's pattern inside a ByteLevel step, or (Llama 3, Qwen) a Split step before it."""
    steps = [pre_tokenizer] if pre_tokenizer else []
    if steps and steps[0]["type"] == "Sequence":
        steps = steps[0]["pretokenizers"]
    kinds = [step["type"] for step in steps]
    if "ByteLevel" not in kinds:
        raise OtherKind("its pre-tokenizer is not byte-level; this course reads GPT-2's kind of BPE")
    byte_level = steps[-1]
    if byte_level.get("add_prefix_space"):
        raise OtherKind("it puts a space before each text (add_prefix_space), which this course does not")
    if kinds == ["ByteLevel"] and byte_level.get("use_regex", True):
        return GPT2_SPLIT_PATTERN
    if kinds == ["Split", "ByteLevel"] and not byte_level.get("use_regex", True):
        split, pattern = steps[0], steps[0]["pattern"].get("Regex")
        if pattern in SPLIT_PATTERNS.values() and split["behavior"] == "Isolated" and not split.get("invert"):
            return pattern
    raise OtherKind(
        f"its pre-tokenizer ({visible(' + '.join(kinds))}) is of a kind this course does not read: it takes "
        "ByteLevel alone, or one Split by the pattern of Llama 3 or Qwen (Isolated) and then ByteLevel"
    )


def _unicode_form(normalizer: dict[str, Any] | None) -> Any:
    if normalizer is None or normalizer.get("normalizers") == []:
        return None
    if normalizer["type"] not in ("NFC", "NFD", "NFKC", "NFKD"):
        raise OtherKind(
            f"it changes text by a {visible(normalizer['type'])} step, which this course does not read"
        )
    return normalizer["type"]


def from_tiktoken(kind: type[Tok], name: str) -> Tok:
    """See `BPETokenizer.from_tiktoken`."""
    import requests
    import tiktoken
    from tiktoken_ext import openai_public

    if name not in tiktoken.list_encoding_names():
        raise ValueError(f"tiktoken has no encoding {name!r}: {', '.join(tiktoken.list_encoding_names())}")
    if name == "gpt2":
        register_gpt2_vocabulary()
    try:
        encoding = tiktoken.get_encoding(name)
    except (requests.RequestException, OSError) as error:
        raise ConnectionError(
            f"the vocabulary {name!r} is not on this machine and could not be fetched "
            f"({type(error).__name__}): go online once, or set TIKTOKEN_CACHE_DIR to a folder that holds it"
        ) from None

    ranks = encoding._mergeable_ranks  # tiktoken's README names these fields for extension
    special = dict(encoding._special_tokens)
    taken = {*ranks.values(), *special.values()}  # not every id: cl100k_base leaves a few free
    token_bytes: list[bytes] = [b""] * encoding.n_vocab
    for token, i in ranks.items():
        token_bytes[i] = token
    special |= {f"<|unused_{i}|>": i for i in range(encoding.n_vocab) if i not in taken}
    for token, i in special.items():
        token_bytes[i] = token.encode("utf-8")

    known: dict[Pair, tuple[int, int]] = {}  # merges so far: pair -> (rank, new id)
    for token, new_id in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            pair = apply_merges([ranks[bytes([b])] for b in token], known)
            if len(pair) != 2:
                raise ValueError(f"tiktoken's {name!r}: token {new_id} does not come from one merge")
            known[pair[0], pair[1]] = (new_id, new_id)
    pattern = encoding._pat_str
    if pattern == getattr(openai_public, "r50k_pat_str", None):
        pattern = GPT2_SPLIT_PATTERN  # tiktoken's is worded for speed; tokenizer.json names the plain one
    return kind(token_bytes, list(known), special, pattern)
