"""Two ways to store a byte-level BPE tokenizer: Hugging Face's tokenizer.json, and tiktoken's ranks.

Both hold the same thing, the tokens and the order of the merges, and both needed a trick:

- JSON holds text, but a token may be any bytes. GPT-2 gave each byte a printable character of its
  own: visible ones stand for themselves, the others move up past 255. A space becomes "Ġ".
- tiktoken stores only the finished tokens with their rank, not the pair each came from. The pair is
  recovered: encode the token with the merges learned before it; what remains is the pair.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from phase1_tokens_embeddings.bpe import GPT2_SPLIT_PATTERN, Pair, apply_merges
from phase1_tokens_embeddings.tokenizer import BPETokenizer


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


def to_tokenizer_json(tok: BPETokenizer) -> dict[str, Any]:
    """The tokenizer as a tokenizer.json document (the format of Hugging Face's `tokenizers`)."""
    special_ids = set(tok.special_tokens.values())
    names = [printable(b) for b in tok.token_bytes]
    vocab = {name: i for i, name in enumerate(names) if i not in special_ids}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    if tok.split_pattern == GPT2_SPLIT_PATTERN:
        split: dict[str, Any] = byte_level | {"use_regex": True}
    else:
        by_pattern = {
            "type": "Split",
            "pattern": {"Regex": tok.split_pattern},
            "behavior": "Isolated",
            "invert": False,
        }
        split = {"type": "Sequence", "pretokenizers": [by_pattern, byte_level | {"use_regex": False}]}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": i,
                "content": name,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for name, i in sorted(tok.special_tokens.items(), key=lambda item: item[1])
        ],
        "normalizer": None,
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


def read_tokenizer_json(path: Path) -> BPETokenizer:
    """Read a tokenizer.json.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not JSON, not byte-level BPE, or parts that do not fit together.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no tokenizer at {path}: expected a file called tokenizer.json")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        model = document["model"]
        kind = model.get("type", "BPE")
        if kind != "BPE" or model.get("byte_fallback"):
            raise ValueError(
                f"{path}: its model is {kind}{' with byte fallback' * (kind == 'BPE')}; this course "
                "reads byte-level BPE (GPT-2, Llama 3, Qwen)"
            )
        return _from_document(document)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}): fetch or write it again") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a tokenizer.json of the BPE kind: {error!r}") from None


def _from_document(document: dict[str, Any]) -> BPETokenizer:
    model = document["model"]
    special = {t["content"]: t["id"] for t in document.get("added_tokens", [])}
    size = 1 + max([*model["vocab"].values(), *special.values()])
    token_bytes: list[bytes | None] = [None] * size
    for name, i in model["vocab"].items():
        if name not in special:
            token_bytes[i] = bytes(CHAR_TO_BYTE[char] for char in name)
    for name, i in special.items():
        token_bytes[i] = name.encode("utf-8")
    if None in token_bytes:
        raise ValueError(f"token id {token_bytes.index(None)} has no token: the vocabulary has a hole")

    merges: list[Pair] = []
    for merge in model["merges"]:
        a, b = merge.split(" ") if isinstance(merge, str) else merge  # older files: "a b"
        merges.append((model["vocab"][a], model["vocab"][b]))
        model["vocab"][a + b]  # a KeyError here: the merged token is missing
    return BPETokenizer(
        [b for b in token_bytes if b is not None],
        merges,
        special,
        _split_pattern(document.get("pre_tokenizer")),
        bool(model.get("ignore_merges", False)),
    )


def _split_pattern(pre_tokenizer: dict[str, Any] | None) -> str:
    steps = [pre_tokenizer] if pre_tokenizer else []
    if steps and steps[0]["type"] == "Sequence":
        steps = steps[0]["pretokenizers"]
    if not any(step["type"] == "ByteLevel" for step in steps):
        raise ValueError("its pre-tokenizer is not byte-level; this course reads GPT-2's kind of BPE")
    for step in steps:
        if step["type"] == "Split" and "Regex" in step["pattern"]:
            return step["pattern"]["Regex"]
        if step["type"] == "ByteLevel" and step.get("use_regex", True):
            return GPT2_SPLIT_PATTERN
    raise ValueError("its pre-tokenizer names no split pattern")


def from_tiktoken(name: str) -> BPETokenizer:
    """Take over a vocabulary of tiktoken, fetched by tiktoken itself if it is not cached yet.

    Raises:
        ValueError: tiktoken knows no encoding of this name.
        ConnectionError: the vocabulary is not cached and could not be fetched.
    """
    import requests
    import tiktoken

    if name not in tiktoken.list_encoding_names():
        raise ValueError(f"tiktoken has no encoding {name!r}: {', '.join(tiktoken.list_encoding_names())}")
    try:
        encoding = tiktoken.get_encoding(name)
    except (requests.RequestException, OSError) as error:
        raise ConnectionError(
            f"the vocabulary {name!r} is not on this machine and could not be fetched "
            f"({type(error).__name__}): go online once, or set TIKTOKEN_CACHE_DIR to a folder that holds it"
        ) from None

    ranks = encoding._mergeable_ranks  # tiktoken's README names these fields for extension
    special = encoding._special_tokens
    token_bytes: list[bytes] = [b""] * encoding.n_vocab
    for token, i in ranks.items():
        token_bytes[i] = token
    for token, i in special.items():
        token_bytes[i] = token.encode("utf-8")

    known: dict[Pair, tuple[int, int]] = {}  # merges so far: pair -> (rank, new id)
    for token, new_id in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            pair = apply_merges([ranks[bytes([b])] for b in token], known)
            if len(pair) != 2:
                raise ValueError(f"tiktoken's {name!r}: token {new_id} does not come from one merge")
            known[pair[0], pair[1]] = (new_id, new_id)
    return BPETokenizer(token_bytes, list(known), special, encoding._pat_str)
