"""The tokenization lab: its small library, its sample texts, its story and its errors."""

import pytest
import tiktoken

from labkit.catalog import text_of_phase
from phase1_tokens_embeddings import tokenization_lab
from phase1_tokens_embeddings.story import token_density, tokenization_story
from phase1_tokens_embeddings.story.token_density import sample_text
from phase1_tokens_embeddings.story.tokenization_story import show_tokens, with_first_merges
from phase1_tokens_embeddings.tokens import BPETokenizer

CLAIMS = ["gpt2-vocab", "hello-ids", "unbelievable-ids", "prompt-ids", "density", "context-128k"]


@pytest.fixture
def run(run_script):
    return lambda *options: run_script(tokenization_lab, "--quick", *options, figures=["token_density"])


# ---------------------------------------------------------------------- the small library


def test_the_text_prints_what_is_learned():
    text = text_of_phase("phase1_tokens_embeddings")
    tok, sentence = BPETokenizer.train(token_density.course_texts(), 1257), tokenization_story.SENTENCE
    for merges, count in (
        (0, "33 tokens, before any"),
        (50, "20 tokens, after 50"),
        (1000, "10 tokens, after 1,000"),
    ):
        ids = with_first_merges(tok, merges).encode(sentence)
        assert len(ids) == int(count.split()[0]) and count in text
        assert show_tokens(tok, ids) in text


# ---------------------------------------------------------------------- the story


def test_main(run):
    report = run()
    assert set(CLAIMS) <= set(report["claims"])
    assert "The sentence shrinks" in report["out"]
    rows, length = report["results"]["shrinking"], len(tokenization_story.SENTENCE)
    assert rows[0] == [0, length]
    assert rows[-1][1] < length / 3
    first, shared = report["results"]["chat_prompt"]
    assert shared == first and report["results"]["chat_end_marks"] == [2, 1]


def test_main_with_gpt2s_vocabulary(run):
    report = run("--model", "gpt2")
    reference = tiktoken.get_encoding("gpt2")
    found = report["claims"]
    assert found["gpt2-vocab"]["measured"] == reference.n_vocab
    assert found["density"]["kind"] == "timing"
    for value, name in zip(found["density"]["measured"], ("prose", "technical", "code"), strict=True):
        text = sample_text(name)
        assert value == pytest.approx(len(text) / len(reference.encode_ordinary(text)), abs=0.006)
    prose = sample_text("prose")
    filled = reference.decode(reference.encode_ordinary(prose * 400)[:128_000])
    assert found["context-128k"]["measured"][0] == len(filled)
    assert found["context-128k"]["verdict"] == "corrected"
    assert list(report["results"]["density"]) == ["GPT-2"]


def test_main_with_a_text_of_ones_own(run, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "notes.md").write_text("One fish, two fish. Один, два. 一二三。\n" * 30, encoding="utf-8")
    report = run("--text", folder)
    assert "nothing was left to merge" in report["out"] and "your text" in report["out"]
    assert report["results"]["training_bytes"] == (folder / "notes.md").stat().st_size


# ---------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("options", "content", "message"),
    [
        (["--text", "{tmp}/input.txt"], b" \n", "holds no text"),
        (["--text", "{tmp}/input.txt"], b"caf\xe9 au lait", "cannot be read as UTF-8 text"),
        (["--text", "{tmp}/input.txt"], b"a\0b", "is a binary file"),
        (["--text", "{tmp}/folder"], b"", "holds no text: give a .txt or .md or .py file"),
        (["--sentence", " "], b"", "--sentence is empty"),
        (["--model", "./nowhere"], b"", "no model folder at"),
        (["--model", "{tmp}/folder"], b"", "holds no tokenizer.json"),
    ],
)
def test_mistakes_get_one_line(mistake_of, tmp_path, options, content, message):
    (tmp_path / "input.txt").write_bytes(content)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text("{}")  # makes it a model folder
    error = mistake_of(tokenization_lab, "--quick", *(o.format(tmp=tmp_path) for o in options))
    assert "error:" in error and message in error
