"""The tokenizer against tiktoken, `tokenizers`, transformers and a naive trainer."""

import json
import random
import unicodedata
from collections import Counter

import pytest
import regex
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.paths import EMBEDDED_MODELS
from phase1_tokens_embeddings.tokens import END_OF_TEXT, BPETokenizer, StreamDecoder
from phase1_tokens_embeddings.tokens.bpe import GPT2_SPLIT_PATTERN, apply_merges, merge_pair, split_words
from tests.phase1_tokens_embeddings.other_tokenizers.test_library_tokenizer import (
    changed,
    check_against_library,
    random_texts,
)

# Written out as in OpenAI's encoder.py, not taken from the code under test.
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

some, seeds = settings(max_examples=75), st.integers(0, 2**32)
small_text = st.text(st.sampled_from("aab bcé'1\n"), max_size=60)


# ---------------------------------------------------------------------- tokenizers to test


@pytest.fixture(scope="module")
def tales() -> BPETokenizer:
    return BPETokenizer.from_file(EMBEDDED_MODELS / "tales" / "tokenizer.json")


@pytest.fixture(scope="module")
def gpt2() -> BPETokenizer:
    return BPETokenizer.from_tiktoken("gpt2")


def corpus() -> list[str]:
    """Made-up words of several scripts, some of them frequent: enough to learn a few hundred merges."""
    rng = random.Random(5)
    letters = "etaoinshrdlu" * 3 + "ÄÖéßñ" + "дляне" + "漢字語" + "कखि"
    words = ["".join(rng.choices(letters, k=rng.randint(1, 9))) for _ in range(400)]
    return [
        " ".join(rng.choices(words, weights=range(1, 401), k=300)) + "\n\n  x = 3;\n🙂🙂" for _ in range(10)
    ]


@pytest.fixture(scope="module")
def trained() -> BPETokenizer:
    return BPETokenizer.train(corpus(), 700)


# ---------------------------------------------------------------------- against tiktoken


@some
@given(seed=seeds)
def test_gpt2_encodes_as_tiktoken(gpt2, seed):
    """Ten random strings at a time, whole and between halves of characters."""
    import tiktoken

    reference = tiktoken.get_encoding("gpt2")
    for text in random_texts(10, seed):
        for whole in (text, f"\udc00{text}\ud83d"):
            assert gpt2.encode(whole) == reference.encode_ordinary(whole)


@pytest.mark.proof
def test_every_character_is_cut_as_in_the_tokenizers_library():
    """Letter, digit, space or other, for each code point that this Python's Unicode knows: ids alone do not show
    where a text was cut, that library does. Each character stands beside a letter, a digit and a sign."""
    split = regex.compile(GPT2_SPLIT_PATTERN)
    reference = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    known = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) not in ("Cn", "Co", "Cs")]
    for start in range(0, len(known), 1000):
        text = "".join(f"a{c}'s1{c}!{c} {c}" for c in known[start : start + 1000])
        expected = [text[a:b] for _, (a, b) in reference.pre_tokenize_str(text)]
        assert split_words(split, text) == expected, f"from U+{ord(known[start]):04X}"


LENGTH = 20_000
LONG_WORDS = [sign * LENGTH for sign in ("a", "ab", " ", "\n", "=", "'", "7", "👩\u200d", "的")]
LONG_WORDS += [
    "".join(random.Random(1).choices("abcdefghij", k=LENGTH)),
    " " * LENGTH + "x",
    "e" + "\u0301" * LENGTH,
]


@pytest.mark.timeout(120)  # an algorithm in n² steps would need many minutes
@pytest.mark.parametrize("text", LONG_WORDS, ids=lambda text: ascii(text[-3:]))
def test_long_words_as_tiktoken(gpt2, text):
    import tiktoken

    assert gpt2.encode(text) == tiktoken.get_encoding("gpt2").encode_ordinary(text)


# ---------------------------------------------------------------------- against tokenizers and transformers


@pytest.mark.parametrize("name", ["trained", "tales", "gpt2"])
def test_a_saved_file_in_the_libraries(request, name, tmp_path):
    from transformers import AutoTokenizer

    tok, path, texts = request.getfixturevalue(name), tmp_path / "tokenizer.json", random_texts(400)
    tok.save(path)
    again, auto = check_against_library(path, texts), AutoTokenizer.from_pretrained(tmp_path)
    for field in ("token_bytes", "merges", "special_tokens"):
        assert getattr(again, field) == getattr(tok, field)
    for text in texts:
        assert again.encode(text) == tok.encode(text) == auto(text, add_special_tokens=False).input_ids
    step = json.loads(path.read_text(encoding="utf-8"))["pre_tokenizer"]
    assert step["type"] == "ByteLevel"  # as in the file that GPT-2 has on the hub


def test_older_files_write_a_merge_as_one_string(trained, tmp_path):
    path = tmp_path / "tokenizer.json"
    trained.save(path)
    changed(path, lambda d: d["model"].update(merges=[" ".join(merge) for merge in d["model"]["merges"]]))
    assert BPETokenizer.from_file(path).merges == trained.merges


# ---------------------------------------------------------------------- training


def naive_training(texts: list[str], num_merges: int) -> list[tuple[tuple[int, int], int]]:
    """Count everything anew before each merge. Ties go to the smaller pair."""
    words = [list(w.encode()) for text in texts for w in regex.findall(GPT2_PATTERN, text)]
    merges = []
    for new_id in range(256, 256 + num_merges):
        counts = Counter((w[i], w[i + 1]) for w in words for i in range(len(w) - 1))
        if not counts:
            break
        pair = min(counts, key=lambda p: (-counts[p], p))
        merges.append((pair, counts[pair]))
        words = [merge_pair(w, pair, new_id) for w in words]
    return merges


@some
@given(texts=st.lists(small_text, max_size=4), num_merges=st.integers(0, 40))
def test_training_equals_the_naive_way(texts, num_merges):
    seen = []
    tok = BPETokenizer.train(
        texts, 257 + num_merges, on_merge=lambda i, pair, count: seen.append((i, pair, count))
    )
    expected = naive_training(texts, num_merges)
    assert seen == [(i, pair, count) for i, (pair, count) in enumerate(expected)]
    assert tok.merges == [pair for pair, _ in expected]
    assert len(set(tok.token_bytes)) == tok.vocab_size == 257 + len(expected)  # no token comes twice


def test_special_tokens_are_never_learned():
    texts = ["low lower" + END_OF_TEXT + "lowest low"] * 50 + [END_OF_TEXT * 200]
    tok = BPETokenizer.train(texts, 400)
    assert tok.merges == BPETokenizer.train(["low lower", "lowest low"] * 50, 400).merges
    learned = tok.token_bytes[256 : tok.eos_token_id]
    assert learned
    assert not any(token in END_OF_TEXT.encode() for token in learned)
    several = BPETokenizer.train(["x<|a|><|a|>y"] * 9, 300, special_tokens=("<|a|>", "<|a|><|a|>"))
    assert several.merges == []
    assert several.encode("<|a|><|a|>", allowed_special="all") == [257]  # the longer one first


@settings(max_examples=150)
@given(word=st.lists(st.integers(0, 3), max_size=25), seed=st.integers(0, 1000))
def test_applying_merges_equals_the_plain_way(word, seed):
    """Lowest rank first, from the left, until nothing fits."""
    rng = random.Random(seed)
    table, size = {}, 4
    for rank in range(12):
        pair = (rng.randrange(size), rng.randrange(size))
        if pair not in table:
            table[pair] = (rank, size)
            size += 1
    plain = list(word)
    for pair, (_, new_id) in table.items():
        plain = merge_pair(plain, pair, new_id)
    assert apply_merges(word, table) == plain


# ---------------------------------------------------------------------- there and back


@some
@given(seed=seeds)
def test_stream_of_text_is_never_wrong(trained, seed):
    """Whole characters only, and each as soon as its last byte is there. At the end it is the text that was encoded."""
    text = random_texts(1, seed)[-1].replace(REPLACEMENT, "")
    stream, shown, arrived = StreamDecoder(trained), "", b""
    for i in trained.encode(text):
        shown += stream.push(i)
        arrived += trained.token_bytes[i]
        assert text.startswith(shown)
        assert REPLACEMENT not in shown
        assert shown == arrived.decode("utf-8", "ignore")
    assert stream.finish() == ""
    assert shown == text


@settings(max_examples=150)
@given(data=st.data(), skip=st.booleans())
def test_streamed_equals_whole_for_any_ids(trained, data, skip):
    raw_bytes = st.sampled_from([0xF0, 0x9F, 0x99, 0x82, 0xE2, 0x80, 0xC3, 0xA9, 0xED, 0xA0, 0xFF, 0x41])
    ids = data.draw(st.lists(raw_bytes | st.integers(0, trained.vocab_size - 1), max_size=30))
    stream = StreamDecoder(trained, skip_special_tokens=skip)
    shown = "".join(stream.push(i) for i in ids) + stream.finish()
    assert shown == trained.decode(ids, skip_special_tokens=skip)
    kept = [i for i in ids if not (skip and i == trained.eos_token_id)]
    assert shown == b"".join(trained.token_bytes[i] for i in kept).decode("utf-8", "replace")


def test_special_tokens_must_be_allowed(trained):
    eos = trained.eos_token_id
    text = f"one{END_OF_TEXT}two"
    assert eos not in trained.encode(text)
    assert trained.decode(trained.encode(text)) == text
    expected = [*trained.encode("one"), eos, *trained.encode("two")]
    for allowed in ("all", {END_OF_TEXT}, [END_OF_TEXT], END_OF_TEXT):
        assert trained.encode(text, allowed_special=allowed) == expected
    assert trained.decode(expected) == text
    assert trained.decode(expected, skip_special_tokens=True) == "onetwo"


# ---------------------------------------------------------------------- errors


BYTES = [bytes([b]) for b in range(256)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda tok: tok.decode([0, -1]), "token id -1 is outside the vocabulary: ids go from 0 to 699"),
        (lambda tok: tok.decode([0, 700]), "token id 700 is outside the vocabulary"),
        (lambda tok: StreamDecoder(tok).push(10**9), "outside the vocabulary"),
        (lambda tok: tok.encode("x", {"<|im_end|>"}), r"'<\|im_end\|>' is not a special token .*<\|endoftext\|>"),
        (lambda tok: tok.train(["text"], 256), r"vocab_size 256 is too small.* at least 257"),
        (lambda tok: tok.train("text", 300), "single string"),
        (lambda tok: tok.train(["text"], 300, ("<a>", "<a>")), "different and not empty"),
        (lambda tok: tok.train(["text"], 300, ("",)), "different and not empty"),
        (lambda tok: BPETokenizer(BYTES[:255], [], {}), "lacks 1 of the 256 single bytes"),
        (lambda tok: BPETokenizer(BYTES, [(97, 98)], {}), "merge number 0 makes b'ab'"),
        (lambda tok: BPETokenizer(BYTES, [], {}, split_pattern=r"\p{L}+").encode("a b"), "must match every character"),
        (lambda tok: BPETokenizer(BYTES, [], {}, split_pattern=r"(.)"), "without groups"),
        (lambda tok: BPETokenizer(BYTES, [], {}, split_pattern="("), "no regular expression"),
    ],
)  # fmt: skip
def test_a_mistake_gets_one_clear_line(trained, call, message):
    with pytest.raises(ValueError, match=message):
        call(trained)


def test_a_special_token_that_the_file_format_cannot_hold(tmp_path):
    for name in ("é", "a"):
        tok = BPETokenizer.train(["text"], 300, special_tokens=(name,))
        assert tok.encode(name, allowed_special="all") == [tok.special_tokens[name]]
        assert tok.special_tokens[name] not in tok.encode(name)
        with pytest.raises(ValueError, match=f"cannot hold the special token '{name}'"):
            tok.save(tmp_path / "tokenizer.json")


def change(key: str, value):
    """A change to the model part of a tokenizer.json."""
    return lambda document: document["model"].update({key: value})


def change_step(step: dict):
    return lambda document: document.update(pre_tokenizer=step)


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
SPLIT = {"type": "Split", "pattern": {"Regex": r"\d"}, "behavior": "Isolated", "invert": False}


def in_turn(*steps: dict) -> dict:
    return {"type": "Sequence", "pretokenizers": [*steps, BYTE_LEVEL | {"use_regex": False}]}


BROKEN_FILES = {
    "a hole": (lambda d: d["model"]["vocab"].pop("a"), "id 97 has no token: the vocabulary has a hole"),
    "a huge id": (lambda d: d["model"]["vocab"].update(a=10**15), "id 97 has no token"),
    "another kind": (change("type", "\x1b[2J" * 99), r"its model is \\x1b\[2J"),
    "byte fallback": (change("byte_fallback", True), "byte_fallback"),
    "a merge of one": (change("merges", ["ab"]), "merge 'ab' does not join two tokens"),
    "a merge of strangers": (change("merges", [["a", "漢"]]), "does not join two tokens"),
    "a merge to nowhere": (change("merges", [["a", "\u00ff"]]), "which the vocabulary does not hold"),
    "two ids for one name": (
        lambda d: d["added_tokens"].append(d["added_tokens"][0] | {"content": "é", "id": 700}),
        "added token 'é' has the id 700, but 233 in",
    ),
    "a character for no byte": (lambda d: d["model"]["vocab"].update({"漢": 700}), "'漢' stands for no byte"),
    "no model": (lambda d: d.pop("model"), "not a tokenizer.json of the BPE kind: KeyError"),
    "no byte level": (change_step({"type": "Whitespace"}), "not byte-level"),
    "a prefix space": (change_step(BYTE_LEVEL | {"add_prefix_space": True}), "add_prefix_space"),
    "two cuts": (change_step(in_turn(SPLIT, SPLIT)), r"Split \+ Split \+ ByteLevel"),
    "another pattern": (change_step(in_turn(SPLIT)), "or one Split by the pattern of Llama 3 or Qwen"),
    "a truth as id": (lambda d: d["model"]["vocab"].update(a=True), "no whole number"),
    "no name": (lambda d: d["added_tokens"].append({"content": "", "id": 700}), "must have names"),
    "half a character": (lambda d: d["added_tokens"].append({"content": "\ud800", "id": 700}), "cannot be used"),
    "lower case": (lambda d: d.update(normalizer={"type": "Lowercase"}), "Lowercase step"),
}  # fmt: skip


@pytest.mark.parametrize(("breakage", "message"), BROKEN_FILES.values(), ids=BROKEN_FILES.keys())
def test_a_file_that_cannot_be_read_rightly(trained, tmp_path, breakage, message):
    path = tmp_path / "tokenizer.json"
    trained.save(path)
    changed(path, breakage)
    with pytest.raises(ValueError, match=message) as caught:
        BPETokenizer.from_file(path)
    text = str(caught.value)
    assert str(path) in text and "\x1b" not in text and "\n" not in text and len(text) < len(str(path)) + 250


@pytest.mark.timeout(60)
def test_tiktoken_without_cache_and_network(no_gpt2_vocabulary, monkeypatch):
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody listens there
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConnectionError, match=r"'gpt2' is not on this machine.*TIKTOKEN_CACHE_DIR"):
        BPETokenizer.from_tiktoken("gpt2")


def test_ids_that_tiktoken_leaves_free(monkeypatch):
    """cl100k_base has gaps between its last word and its special tokens; here a tiny one like it."""
    import tiktoken

    ranks = {bytes([b]): b for b in range(256)} | {b"ab": 256}
    tiny = tiktoken.Encoding("tiny", pat_str=r"\w+|\W+", mergeable_ranks=ranks, special_tokens={"<end>": 259})
    monkeypatch.setattr(tiktoken, "list_encoding_names", lambda: ["tiny"])
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: tiny)
    tok = BPETokenizer.from_tiktoken("tiny")
    assert tok.vocab_size == tiny.n_vocab == 260
    assert tok.encode("abba <end>", allowed_special="all") == tiny.encode("abba <end>", allowed_special="all")
    assert tok.decode([257]) == "<|unused_257|>"
