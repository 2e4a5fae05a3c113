"""A byte-level BPE tokenizer in the keys of a GGUF file: the tokens, the kind of each, the merges.

The split pattern is not in the file. It has a name there ("gpt-2", "llama-bpe"), and each program that reads the file
has to know the pattern by that name.

Source: `llama-vocab.cpp` of llama.cpp.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from labkit.foreign import quoted
from phase1_tokens_embeddings.tokens.bpe import SPLIT_PATTERNS
from phase1_tokens_embeddings.tokens.tokenizer import BPETokenizer
from phase1_tokens_embeddings.tokens.tokenizer_files import bytes_of, merge_pairs, printable

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # kinds of tokens


class PreTokenizer(NamedTuple):
    """The settings behind a name: see `BPETokenizer` for the fields."""

    split_pattern: str
    whole_words_first: bool = False
    unicode_form: str | None = None


PRE_TOKENIZERS = {
    "gpt-2": PreTokenizer(SPLIT_PATTERNS["gpt-2"]),
    "llama-bpe": PreTokenizer(SPLIT_PATTERNS["llama-bpe"], whole_words_first=True),
    "qwen2": PreTokenizer(SPLIT_PATTERNS["qwen2"], unicode_form="NFC"),
}


def from_gguf_vocabulary(metadata: Mapping[str, Any]) -> BPETokenizer:
    """The tokenizer in the keys of a GGUF file (`read_gguf_header(path).metadata`).

    Raises:
        ValueError: no tokenizer in it, or one of a kind that this course does not read.
    """
    model, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if model is None:
        raise ValueError("it holds no tokenizer: convert the model again, together with its tokenizer.json")
    if model != "gpt2":
        raise ValueError(f"its tokenizer is {quoted(model)}; this course reads byte-level BPE, called 'gpt2'")
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        raise ValueError(
            f"its split pattern is called {quoted(pre)}; known here: {', '.join(PRE_TOKENIZERS)}"
        )
    names = _texts(metadata, "tokenizer.ggml.tokens")
    kinds = metadata.get("tokenizer.ggml.token_type", np.full(len(names), NORMAL))
    if not isinstance(kinds, np.ndarray) or kinds.dtype.kind not in "iu" or len(kinds) != len(names):
        raise ValueError(
            f"its token_type is {quoted(kinds)}: a whole number for each of {len(names)} tokens is needed"
        )
    kinds = kinds.tolist()
    while kinds and kinds[-1] == UNUSED:  # rows of the table beyond the vocabulary
        kinds.pop()
    names = names[: len(kinds)]
    special = {name: i for i, name in enumerate(names) if kinds[i] in (CONTROL, UNUSED)}
    added = {name: i for i, name in enumerate(names) if kinds[i] == USER_DEFINED}
    ids = {name: i for i, name in enumerate(names)}
    if len(ids) < len(names):
        raise ValueError("two of its tokens have the same name")
    tokens = [name.encode() if name in special or name in added else bytes_of(name) for name in names]
    merges = merge_pairs(_texts(metadata, "tokenizer.ggml.merges"), ids)
    return BPETokenizer(tokens, merges, special, *PRE_TOKENIZERS[pre], added)


def to_gguf_vocabulary(tok: BPETokenizer, num_rows: int) -> dict[str, Any]:
    """The keys that hold a tokenizer, without their prefix `tokenizer.ggml.`.

    Args:
        num_rows: rows of the model's token table; those beyond the vocabulary get tokens that never occur.

    Raises:
        ValueError: its split pattern has no name that this course knows, or it has more tokens than rows.
    """
    own = PreTokenizer(tok.split_pattern, tok.whole_words_first, tok.unicode_form)
    pre = next((name for name, known in PRE_TOKENIZERS.items() if known == own), None)
    if pre is None:
        raise ValueError(
            f"the split pattern {quoted(tok.split_pattern)} has no name in GGUF that is known here"
        )
    if tok.vocab_size > num_rows:
        raise ValueError(f"the tokenizer has {tok.vocab_size} tokens, the model a table of {num_rows}")
    kind_of = dict.fromkeys(tok.special_tokens.values(), CONTROL)
    kind_of |= dict.fromkeys(tok.added_tokens.values(), USER_DEFINED)
    names = [b.decode() if i in kind_of else printable(b) for i, b in enumerate(tok.token_bytes)]
    merges = [f"{names[a]} {names[b]}" for a, b in tok.merges]
    unused = range(len(names), num_rows)
    kinds = [kind_of.get(i, NORMAL) for i in range(len(names))] + [UNUSED] * len(unused)
    names += [f"[PAD{i}]" for i in unused]
    return {"model": "gpt2", "pre": pre, "tokens": names, "token_type": kinds, "merges": merges}


def _texts(metadata: Mapping[str, Any], key: str) -> list[str]:
    texts = metadata.get(key)
    if not isinstance(texts, list):
        raise ValueError(f"its {key} is {quoted(texts)}: a list of texts is needed")
    return texts
