"""Streamed text and stop strings against the plain way: decode everything anew after each token, and search."""

import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from phase1_tokens_embeddings.other_tokenizers import read_tokenizer
from phase1_tokens_embeddings.tokens import BPETokenizer, StreamDecoder
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase4_scheduler.engine.output_processor import IncrementalDetokenizer

TOKENIZER = BPETokenizer.train(["aab abb éé 😀😀 the end the end END END aaab"], vocab_size=290)
LETTERS = "ab é😀E\u0301N"


def decoded(ids, params):
    """The text of some tokens, without the bytes at its end that may still become a character."""
    stream = StreamDecoder(TOKENIZER, params.skip_special_tokens)
    return "".join(stream.push(i) for i in ids)


def plain(ids, params):
    """(text, stop string, number of tokens) by decoding everything anew after each token."""
    for n in range(1, len(ids) + 1):
        text, before = decoded(ids[:n], params), decoded(ids[: n - 1], params)
        if n <= params.min_tokens:
            continue
        found = []
        for s in params.stop:
            at = text.find(s)
            while at >= 0 and at + len(s) <= len(before):  # must end in the text of this token
                at = text.find(s, at + 1)
            if at >= 0:
                found.append((at, -len(s), s))
        if found:
            at, _, stop = min(found)
            return text[: at + len(stop)] if params.include_stop_str_in_output else text[:at], stop, n
    return None, None, len(ids)


def streamed(ids, params):
    text = IncrementalDetokenizer(TOKENIZER, params)
    pieces = []
    for n, i in enumerate(ids, 1):
        pieces.append(text.push([i])[0])
        if text.stops.found is not None:
            return pieces, text.stops.found, n
    pieces.append(text.finish())
    return pieces, text.stops.found, len(ids)


@st.composite
def tokens(draw):
    """Any tokens; or those of a text that is split at odd places, where the tokenizer would choose others."""
    if draw(st.booleans()):
        return draw(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=25))
    text, cut = draw(st.text(LETTERS, max_size=30)), draw(st.integers(0, 5))
    odd = list(text[cut : cut + 3].encode())
    ids = TOKENIZER.encode(text[:cut]) + odd + TOKENIZER.encode(text[cut + 3 :])
    return [i for i in ids if i < TOKENIZER.vocab_size]


@given(
    ids=tokens(),
    stop=st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=3),
    keep=st.booleans(),
    skip=st.booleans(),
    min_tokens=st.integers(0, 6),
)
@settings(max_examples=400)
def test_stop_strings_are_found_as_by_decoding_everything(ids, stop, keep, skip, min_tokens):
    how = dict(include_stop_str_in_output=keep, skip_special_tokens=skip, min_tokens=min_tokens)
    params = SamplingParams(stop=stop, max_tokens=100, **how)
    wanted, by, number = plain(ids, params)
    pieces, stopped_by, n = streamed(ids, params)
    assert (stopped_by, n) == (by, number)
    whole = TOKENIZER.decode(ids, skip_special_tokens=skip)
    assert "".join(pieces) == (whole if wanted is None else wanted)
    if by is None or number == len(ids):  # several tokens of a step give the same
        at_once = IncrementalDetokenizer(TOKENIZER, params).push(ids, "length")
        assert at_once == ("".join(pieces), len(ids))


def test_only_what_may_begin_a_stop_string_waits():
    text = IncrementalDetokenizer(TOKENIZER, SamplingParams(stop=["END", "the end"]))
    assert [text.push([b])[0] for b in b"an E"] == ["a", "n", " ", ""]
    assert text.push([ord("x")]) == ("Ex", 1)
    assert text.push(list(b"EN")) == ("", 2)
    assert text.finish() == "EN" and text.stops.found is None


def test_a_stop_string_may_end_in_half_a_character():
    params = SamplingParams(stop="a�")
    text = IncrementalDetokenizer(TOKENIZER, params)
    assert text.push([97, "é".encode()[0]]) == ("", 2)
    assert text.finish() == "" and text.stops.found == "a�"


def test_a_token_that_the_tokenizer_does_not_know_has_no_text():
    text = IncrementalDetokenizer(TOKENIZER, SamplingParams(stop="ab"))
    assert text.push([97, TOKENIZER.vocab_size, 99]) == ("ac", 3)


def test_an_answer_keeps_its_first_space(tmp_path):
    """As with the tokenizers of Llama 2 and Mistral, whose texts begin with a space that is not shown."""
    hub = tokenizers.Tokenizer(models.BPE({"▁once": 0, "▁upon": 1}, []))
    hub.decoder = decoders.Metaspace()
    hub.save(str(tmp_path / "tokenizer.json"))
    tokenizer = read_tokenizer(tmp_path / "tokenizer.json")
    answer = IncrementalDetokenizer(tokenizer, SamplingParams())
    assert (
        tokenizer.decode([0]) + answer.push([1])[0] + answer.finish()
        == tokenizer.decode([0, 1])
        == "once upon"
    )
