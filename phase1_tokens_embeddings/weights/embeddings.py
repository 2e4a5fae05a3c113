"""The two tables with which a GPT-2 begins: a vector for each token, and one for each position.

    input = wte[token id] + wpe[position]         wte: [vocabulary, d_model]   wpe: [context, d_model]

Two rows are looked up and added. Training gave the vectors their values; this module reads, compares and
projects them.

Sources: Radford et al., "Language Models are Unsupervised Multitask Learners" (GPT-2, 2019), section 2.3;
Mikolov et al., "Efficient Estimation of Word Representations in Vector Space" (2013), for cosines of words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from labkit.foreign import quoted, visible
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase1_tokens_embeddings.weights.safetensors_file import (
    checkpoint_files,
    open_tensors,
    read_safetensors_header,
)

# With and without the head of the model in front, as different programs save it.
WTE_NAMES = ("transformer.wte.weight", "wte.weight", "model.embed_tokens.weight", "embed_tokens.weight")
WPE_NAMES = ("transformer.wpe.weight", "wpe.weight")
FLOATS = ("F32", "F16", "BF16", "F64")


@dataclass
class Embeddings:
    """The tables of a model, in float32.

    Attributes:
        wte: [vocab_size, d_model], a vector for each token.
        wpe: [max_context, d_model], a vector for each position; None for models with rotary positions.
    """

    wte: Tensor
    wpe: Tensor | None
    tokenizer: BPETokenizer

    def token_of(self, word: str) -> int | None:
        """The id of a word as it stands in running text, with a space before it.

        None if the word takes several tokens: then no row of the table is its own.
        """
        ids = self.tokenizer.encode(" " + word)
        return ids[0] if len(ids) == 1 else None

    def vectors(self, words: Sequence[str]) -> Tensor:
        """[len(words), d_model].

        Raises:
            ValueError: a word is not one token.
        """
        ids = [self.token_of(word) for word in words]
        if None in ids:
            raise ValueError(
                f"{words[ids.index(None)]!r} is not one token of this vocabulary, so it has no vector of its own: "
                "try a more common word, such as 'king'"
            )
        return self.wte[ids]

    def neighbours(self, word: str, k: int = 5) -> list[tuple[str, float]]:
        """The k tokens whose vectors have the most similar direction, with their cosines.

        Raises:
            ValueError: the word is not one token.
        """
        vector = self.vectors([word])[0]
        similarity = cosine(self.wte, vector)
        similarity[self.token_of(word)] = -2.0  # not itself
        top = similarity.topk(min(k, len(similarity) - 1))
        known = self.tokenizer.vocab_size
        names = [self.tokenizer.decode([i]) if i < known else "" for i in top.indices.tolist()]
        return list(zip(names, top.values.tolist(), strict=True))

    def input_matrix(self, ids: Sequence[int]) -> Tensor:
        """The input of the first layer for these tokens: [len(ids), d_model].

        Raises:
            ValueError: no tokens, an id outside the table, or more tokens than positions.
        """
        if not len(ids):
            raise ValueError("no tokens: at least one is needed")
        if wrong := [i for i in ids if not 0 <= i < len(self.wte)]:
            raise ValueError(
                f"token id {wrong[0]} is outside the table: ids go from 0 to {len(self.wte) - 1}"
            )
        x = self.wte[torch.as_tensor(ids)]
        if self.wpe is None:
            return x
        if len(ids) > len(self.wpe):
            raise ValueError(f"{len(ids)} tokens are too many: this model has {len(self.wpe)} positions")
        return x + self.wpe[: len(ids)]


def load_embeddings(folder: str | Path) -> Embeddings:
    """Read the two tables straight from the checkpoint; nothing else of the model is loaded.

    Raises:
        FileNotFoundError: no checkpoint or no tokenizer in the folder.
        ValueError: a broken checkpoint, none of the known tables in it, or tables that do not fit.
    """
    folder = Path(folder)
    wte = wpe = None
    for file in checkpoint_files(folder):
        header = read_safetensors_header(file)  # checks the file before anything is loaded from it
        with open_tensors(file) as tensors:
            for name, entry in header.tensors.items():
                if name not in WTE_NAMES + WPE_NAMES:
                    continue
                if len(entry.shape) != 2 or 0 in entry.shape or entry.dtype not in FLOATS:
                    raise ValueError(
                        f"{visible(file)}: {name} is {entry.dtype} {quoted(list(entry.shape))}: a table of floats is needed"
                    )
                table = tensors.get_tensor(name).float()
                if name in WTE_NAMES:
                    wte = table
                else:
                    wpe = table
    if wte is None:
        raise ValueError(f"{visible(folder)} holds no embedding table (looked for {', '.join(WTE_NAMES)})")
    if wpe is not None and wpe.shape[1] != wte.shape[1]:
        raise ValueError(
            f"{visible(folder)}: token vectors have {wte.shape[1]} numbers, position vectors {wpe.shape[1]}"
        )
    tokenizer = BPETokenizer.from_file(folder / "tokenizer.json")
    if tokenizer.vocab_size > len(wte):
        raise ValueError(
            f"{visible(folder)}: {tokenizer.vocab_size} tokens, but {len(wte)} vectors: files of two models?"
        )
    return Embeddings(wte, wpe, tokenizer)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of the angle between vectors along the last dimension: 1 same direction, 0 unrelated, -1 opposite.

    A vector of zeros has no direction; its cosine is given as 0.
    """
    return torch.nn.functional.cosine_similarity(a, b, dim=-1)


def pca_2d(vectors: Tensor) -> tuple[Tensor, float]:
    """The two directions in which the vectors differ most (principal component analysis).

    Args:
        vectors: [n, d], n of 2 or more.

    Returns:
        [n, 2] coordinates, and the share of the variance that survives the flattening.
    """
    centred = vectors - vectors.mean(dim=0)
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    total = float((s**2).sum())
    return (u * s)[:, :2], float((s[:2] ** 2).sum()) / total if total else 0.0


def same_rows(a: Tensor, b: Tensor) -> bool:
    """True if two matrices hold exactly the same rows, in any order."""
    return sorted(a.tolist()) == sorted(b.tolist())
