"""The embedding tables: what is refused, and vectors compared as numpy compares them.

(That the input matrix is that of transformers, bit for bit: the script's claim `input-matrix-checkpoint` on small models.)
"""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Model

from phase1_tokens_embeddings.story.embedding_story import pair_cosine
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase1_tokens_embeddings.weights.embeddings import Embeddings, load_embeddings, pca_2d

VOCAB = 300  # ids of the tokenizer; the small GPT-2 has three rows more


@pytest.fixture(scope="module")
def e(gpt2_folder) -> Embeddings:
    return load_embeddings(gpt2_folder)


# ------------------------------------------------------------------ reading


def test_shards_and_bare_names_are_read_alike(tmp_path, e, gpt2_folder, tokenizer):
    model = GPT2Model.from_pretrained(gpt2_folder, dtype=torch.float16)  # saves names without "transformer."
    model.save_pretrained(tmp_path, max_shard_size="12KB")
    tokenizer.save(tmp_path / "tokenizer.json")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    again = load_embeddings(tmp_path)
    assert torch.equal(again.wte, e.wte.half().float()) and torch.equal(again.wpe, e.wpe.half().float())


def test_broken_folders_are_refused(tmp_path, gpt2_folder, tokenizer):
    with pytest.raises(FileNotFoundError, match=r"no model\.safetensors"):
        load_embeddings(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(gpt2_folder / "model.safetensors")

    def refused(change, message, error=ValueError):
        save_file({k: v.contiguous() for k, v in (tensors | change).items() if v is not None}, path)
        with pytest.raises(error, match=message):
            load_embeddings(tmp_path)

    wte, wpe = "transformer.wte.weight", "transformer.wpe.weight"
    refused({}, "no tokenizer", FileNotFoundError)
    BPETokenizer(
        tokenizer.token_bytes + [b"<%d>" % i for i in range(5)], tokenizer.merges, tokenizer.special_tokens
    ).save(tmp_path / "tokenizer.json")
    refused({}, "305 tokens, but 303 vectors")
    tokenizer.save(tmp_path / "tokenizer.json")
    refused({wte: None}, "holds no embedding table")
    refused({wte: torch.ones(303)}, r"F32 \[303\]: a table of floats")
    refused({wte: torch.ones(303, 24, dtype=torch.int64)}, "I64")
    refused({wpe: torch.ones(16, 23)}, "token vectors have 24 numbers, position vectors 23")


# ------------------------------------------------------------------ the input matrix


def test_input_matrix_refuses_what_it_cannot_look_up(e):
    with pytest.raises(ValueError, match="no tokens"):
        e.input_matrix([])
    for wrong in (-1, 303):
        with pytest.raises(ValueError, match=f"token id {wrong} is outside the table: ids go from 0 to 302"):
            e.input_matrix([1, wrong])
    assert e.input_matrix([0] * 16).shape == (16, 24)
    with pytest.raises(ValueError, match="17 tokens are too many: this model has 16 positions"):
        e.input_matrix([0] * 17)


# ------------------------------------------------------------------ cosines, neighbours, the map


def test_words_are_tokens_with_a_space_or_none(e):
    assert e.tokenizer.decode([e.token_of("dog")]) == " dog"
    assert e.token_of("xylophone") is None
    with pytest.raises(ValueError, match="'xylophone' is not one token"):
        e.neighbours("xylophone")
    assert pair_cosine(e, "dog", "xylophone") is None
    assert pair_cosine(e, "dog", "dog") == pytest.approx(1, abs=1e-6)


def test_neighbours_are_those_of_a_brute_force_search(e):
    table = e.wte.double().numpy()
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    own = e.token_of("dog")
    order = [i for i in np.argsort(-(unit @ unit[own])) if i != own][:6]
    found = e.neighbours("dog", 6)
    assert [name for name, _ in found] == [e.tokenizer.decode([i]) if i < VOCAB else "" for i in order]
    np.testing.assert_allclose([c for _, c in found], unit[order] @ unit[own], atol=1e-6)
    assert len(e.neighbours("dog", 10_000)) == len(table) - 1


def test_pca_finds_the_directions_of_the_covariance():
    x = torch.randn(30, 7) * torch.tensor([5.0, 3, 1, 1, 1, 1, 1]) + 4
    points, kept = pca_2d(x)
    values, directions = np.linalg.eigh(np.cov(x.double().numpy().T))
    centred = x.double().numpy() - x.double().numpy().mean(axis=0)
    for axis, column in enumerate((-1, -2)):
        expected = centred @ directions[:, column]
        sign = np.sign(expected @ points[:, axis].numpy())
        np.testing.assert_allclose(points[:, axis].numpy() * sign, expected, atol=1e-4)
    assert kept == pytest.approx(values[-2:].sum() / values.sum(), abs=1e-5)
    assert pca_2d(torch.ones(4, 3))[1] == 0.0  # all in one place: no spread to keep
