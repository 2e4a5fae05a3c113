"""Tokenizers of the families that people run: ids as the library `tokenizers` has them, streamed = whole."""

import json
import random
import shutil
import unicodedata

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from phase1_tokens_embeddings.other_tokenizers import LibraryTokenizer, read_tokenizer
from phase1_tokens_embeddings.tokens import BPETokenizer, StreamDecoder

LLAMA3_PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = [
    "the", "dog", "bites", "man", "don't", "I'LL", "unbelievable", "漢字語", "कहानी", "история", "été", "1234567", "x=3;", "🙂🙂",
]  # fmt: skip
SPECIAL = ["<s>", "</s>", "<|im_end|>"]
ADDED = ["<think>", "</think>", "\n\n"]
KNOWN = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) not in ("Cn", "Cs")]
SPACE_TO_TEXT = decoders.Replace("▁", " ")
OURS = ("llama3", "qwen")  # that our own tokenizer reads; the others are left to the library
FAMILIES = (*OURS, "deepseek", "llama2", "gemma", "mistral")


def corpus(rng: random.Random) -> list[str]:
    return [" ".join(rng.choices(WORDS, k=200)) + "\n\n  if x:\n    y  \n" for _ in range(5)]


def byte_level(*splits: str) -> pre_tokenizers.Sequence:
    cuts = [pre_tokenizers.Split(tokenizers.Regex(split), "isolated") for split in splits]
    return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def make(family: str) -> tokenizers.Tokenizer:
    """A small tokenizer in a family's manner, trained by the library itself."""
    sentence_piece = family in ("llama2", "gemma")
    hub = tokenizers.Tokenizer(
        models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True) if sentence_piece else models.BPE()
    )
    if family == "qwen":
        hub.normalizer = normalizers.NFC()
        hub.pre_tokenizer = byte_level(LLAMA3_PATTERN.replace("{1,3}", ""))
        hub.decoder = decoders.ByteLevel()
    elif family == "llama3":
        hub.model = models.BPE(ignore_merges=True)
        hub.pre_tokenizer, hub.decoder = byte_level(LLAMA3_PATTERN), decoders.ByteLevel()
    elif family == "deepseek":
        hub.pre_tokenizer = byte_level(r"\p{N}{1,3}", "[一-龥]+", r" ?\p{L}+|\s+(?!\S)|\s+")
        hub.decoder = decoders.ByteLevel()
    elif family == "llama2":
        hub.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        steps = [SPACE_TO_TEXT, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        hub.decoder = decoders.Sequence(steps)
    elif family == "gemma":
        hub.normalizer = normalizers.Replace(" ", "▁")
        hub.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        hub.decoder = decoders.Sequence([SPACE_TO_TEXT, decoders.ByteFallback(), decoders.Fuse()])
    elif family == "mistral":  # as newer conversions write it
        hub = tokenizers.Tokenizer(models.Unigram())
        hub.pre_tokenizer, hub.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    rng = random.Random(3)
    if family == "mistral":
        all_signs = sorted(set("".join(random_texts(300, 1))))
        trainer = trainers.UnigramTrainer(
            vocab_size=3000, unk_token="<unk>", special_tokens=["<unk>"], initial_alphabet=all_signs, show_progress=False
        )  # fmt: skip
    else:
        alphabet = [] if sentence_piece else pre_tokenizers.ByteLevel.alphabet()
        single_bytes = [f"<0x{b:02X}>" for b in range(256)] if sentence_piece else []
        trainer = trainers.BpeTrainer(
            vocab_size=700, special_tokens=["<unk>", *single_bytes], initial_alphabet=alphabet, show_progress=False
        )  # fmt: skip
    hub.train_from_iterator(corpus(rng), trainer)
    document = json.loads(hub.to_str())
    document["added_tokens"] = [t for t in document["added_tokens"] if not t["content"].startswith("<0x")]
    if family == "llama3":  # a word that no merge can make
        document["model"]["vocab"]["zzzqqq"] = len(document["model"]["vocab"])
    hub = tokenizers.Tokenizer.from_str(json.dumps(document))
    hub.add_special_tokens([tokenizers.AddedToken(name, normalized=False) for name in SPECIAL])
    hub.add_tokens([tokenizers.AddedToken(name, normalized=False) for name in ADDED])
    return hub


def random_texts(count: int, seed: int = 7) -> list[str]:
    """Strings of hard pieces: scripts, runs of spaces, halves of special tokens, names of bytes."""
    rng = random.Random(seed)
    signs = "etaoin  \n\t'.,;-0123Äßéकи\u0301\u200d\u00a0\u2003\u3000\u200b\x85\x1c\u2028👍\x00\x07\x7f\ufeff\uffff▁"
    pieces = [*signs, *WORDS, "zzzqqq", *SPECIAL, *ADDED, "<0x0A>", "    ", "\r\n", "'S", "'s", "'ll", "'re", "'ve", "'d", "'m", "\u2019s", "'ſ", "''",
              "٣", "Ⅷ", "½", "1e-9", "ﬁ", "İ", "क्षि", "한국", "ی\u200cه", "👩\u200d👧", "🇩🇪", "❤\ufe0f", "\x1b[0m", "\U000e0041", " ?!", "====="]  # fmt: skip
    texts = ["", " ", "  a", "<s>", "<s> a</s>", "▁", "e\u0301"]
    for _ in range(count):
        parts = rng.choices(KNOWN, k=2) + rng.choices(pieces, k=16)
        chosen = rng.choices(parts, k=rng.randint(1, 14))
        texts.append("".join(p * rng.choice((1, 1, 1, 2, 5)) for p in chosen))
    return texts


def check_against_library(file, texts: list[str]):
    """Special tokens trusted and not; whole, and as a stream."""
    tok = read_tokenizer(file)
    hub, plain = (tokenizers.Tokenizer.from_file(str(file)) for _ in range(2))
    plain.encode_special_tokens = True
    assert tok.vocab_size == hub.get_vocab_size()
    for text in texts:
        ids = tok.encode(text, "all")
        assert ids == hub.encode(text, add_special_tokens=False).ids
        assert tok.encode(text) == plain.encode(text, add_special_tokens=False).ids
        for skip in (False, True):
            whole, stream = tok.decode(ids, skip), StreamDecoder(tok, skip)
            assert whole == hub.decode(ids, skip_special_tokens=skip)
            assert "".join(map(stream.push, ids)) + stream.finish() == whole
    return tok


def changed(path, change):
    """The tokenizer.json after `change` edited its document."""
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizers")
    for family in FAMILIES:
        make(family).save(str(folder / f"{family}.json"))
    return {family: folder / f"{family}.json" for family in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_as_in_the_library(files, family):
    tok = check_against_library(files[family], random_texts(250))
    assert type(tok) is (BPETokenizer if family in OURS else LibraryTokenizer)
    assert tok.drops_first_space == (family in ("llama2", "mistral"))
    assert {tok.special_tokens[name] for name in SPECIAL} < set(range(tok.vocab_size))
    assert set(tok.added_tokens) == set(ADDED)


@pytest.mark.parametrize("family", ["qwen", "llama2", "gemma", "mistral"])
def test_a_stream_that_continues_a_text(files, family):
    """Wherever a text is cut into a prompt and an answer: decoded apart, both are the whole."""
    tok = read_tokenizer(files[family])
    ids = tok.encode("the dog bites the man")
    for cut in range(1, len(ids)):
        stream = StreamDecoder(tok, continues=True)
        answer = "".join(map(stream.push, ids[cut:])) + stream.finish()
        assert tok.decode(ids[:cut]) + answer == tok.decode(ids)


def test_a_split_pattern_that_tries_too_many_ways_ends_in_one_line(files, tmp_path):
    path, slow = shutil.copy(files["qwen"], tmp_path / "tokenizer.json"), {"Regex": "(a|a)+b"}
    tok = read_tokenizer(changed(path, lambda d: d["pre_tokenizer"]["pretokenizers"][0].update(pattern=slow)))
    assert tok.decode(tok.encode("a dog")) == "a dog"
    with pytest.raises(ValueError, match=r"this tokenizer cannot encode the text: .*retry-limit"):
        tok.encode("a" * 24)


@pytest.mark.parametrize("family", OURS)
def test_our_own_writes_what_it_read(files, tmp_path, family):
    tok = read_tokenizer(files[family])
    tok.save(tmp_path / "again.json")
    again = check_against_library(tmp_path / "again.json", random_texts(50))
    for name in ("added_tokens", "special_tokens", "unicode_form", "split_pattern", "whole_words_first"):
        assert getattr(again, name) == getattr(tok, name)


def test_a_word_that_is_a_token_is_taken_whole_only_where_the_file_says_so(files, tmp_path):
    path = shutil.copy(files["llama3"], tmp_path / "merged.json")
    changed(path, lambda d: d["model"].update(ignore_merges=False))
    merged = check_against_library(path, ["zzzqqq"])
    assert len(read_tokenizer(files["llama3"]).encode("zzzqqq")) == 1 < len(merged.encode("zzzqqq"))


def test_some_special_tokens_are_trusted(files):
    for file in files.values():
        tok = read_tokenizer(file)
        ids = tok.encode("a<s>b</s>", allowed_special={"<s>"})
        assert tok.special_tokens["<s>"] in ids and tok.special_tokens["</s>"] not in ids
        with pytest.raises(ValueError, match="'<nobody>' is not a special token of this vocabulary"):
            tok.encode("a", allowed_special={"<nobody>"})


def test_what_is_no_character(files):
    for family in ("qwen", "deepseek", "llama2", "gemma"):  # the other has no bytes to fall back to
        tok = read_tokenizer(files[family])
        assert tok.decode(tok.encode("a\ud83db")) == "a\N{REPLACEMENT CHARACTER}b"
    tok = read_tokenizer(files["gemma"])
    bytes_of_goat = [tok.token_bytes.index(bytes([b])) for b in "🐐".encode()]
    stream = StreamDecoder(tok)
    assert [stream.push(i) for i in bytes_of_goat] == ["", "", "", "🐐"]
    with pytest.raises(ValueError, match="outside the vocabulary"):
        stream.push(tok.vocab_size)


BROKEN = {
    "another model": (lambda d: d["model"].update(type="WordPiece"), "its model is WordPiece; read here are BPE"),
    "no decoder": (lambda d: d.update(decoder=None), "become text by 'no decoder'"),
    "another decoder": (lambda d: d["decoder"]["decoders"].pop(0), r"by 'ByteFallback \+ Fuse \+ Strip'"),
    "another strip": (lambda d: d["decoder"]["decoders"][3].update(start=2), "SentencePiece's Replace"),
    "a merge of strangers": (lambda d: d["model"]["merges"].append(["zz", "qq"]), "no tokenizer.json that can be"),
    "no model": (lambda d: d.pop("model"), "not a tokenizer.json of the BPE kind"),
}  # fmt: skip


@pytest.mark.parametrize(("breakage", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_a_file_that_cannot_be_read(files, tmp_path, breakage, message):
    path = changed(shutil.copy(files["llama2"], tmp_path / "tokenizer.json"), breakage)
    with pytest.raises(ValueError, match=message) as caught:
        read_tokenizer(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_an_added_token_with_a_way_of_its_own_goes_to_the_library(files, tmp_path):
    """Phi-3's special tokens swallow the spaces after them."""
    hub = tokenizers.Tokenizer.from_file(str(files["qwen"]))
    hub.add_special_tokens([tokenizers.AddedToken("<|end|>", rstrip=True, normalized=False)])
    hub.save(str(tmp_path / "tokenizer.json"))
    tok = check_against_library(tmp_path / "tokenizer.json", ["a<|end|>  b", *random_texts(20)])
    assert type(tok) is LibraryTokenizer
