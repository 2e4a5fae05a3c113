"""An answer that calls the course's own part is refused."""

import pytest

from exercises.grading import NotYet, check
from exercises.judging.source_check import borrowed

COUNT = "def count_pairs(tokens):\n    from collections import Counter\n    return Counter(zip(tokens, tokens[1:]))\n"
BPE = "phase1_tokens_embeddings.tokens.bpe"


def answers(merge):
    """What a notebook's cells define."""
    names = {"__name__": "__main__"}
    exec(f"{COUNT}\n{merge}", names)
    return names["count_pairs"], names["merge"]


@pytest.mark.parametrize(
    ("merge", "found"),
    [
        (f"from {BPE} import merge_pair as merge", f"`merge_pair` of {BPE}"),
        (
            f"from {BPE} import merge_pair\ndef merge(*args): return merge_pair(*args)",
            f"`merge_pair` of {BPE}",
        ),
        (f"import {BPE} as b\ndef merge(*args): return b.merge_pair(*args)", f"the module `{BPE}`"),
        (
            f"def merge(*args):\n    from {BPE} import merge_pair\n    return merge_pair(*args)",
            f"the module `{BPE}`",
        ),
        (
            f"from importlib import import_module\ndef merge(*args):\n    return import_module('{BPE}').merge_pair(*args)",
            f"the module `{BPE}`",
        ),
        (
            f"from {BPE} import merge_pair\nmerge = lambda *args, do=merge_pair: do(*args)",
            f"`merge_pair` of {BPE}",
        ),
        (
            f"from functools import partial\nfrom {BPE} import merge_pair\nmerge = partial(merge_pair)",
            f"`merge_pair` of {BPE}",
        ),
        (
            f"from {BPE} import merge_pair\ndef helper(*args): return merge_pair(*args)\ndef merge(*args): return helper(*args)",
            f"`merge_pair` of {BPE}",
        ),
        (
            f"from {BPE} import merge_pair\nlooked_at = merge_pair\ndef merge(tokens, pair, new_id): return tokens",
            None,
        ),
        (
            'def merge(tokens, pair, new_id):\n    """Like phase1_tokens_embeddings/tokens/bpe.py."""\n    return tokens',
            None,
        ),
    ],
)
def test_what_is_borrowed(merge, found):
    assert borrowed("p1e1_pairs", answers(merge)) == found


def test_a_class_that_inherits_the_courses():
    from phase1_tokens_embeddings.tokens import StreamDecoder

    mine = type("Streamer", (StreamDecoder,), {"__module__": "__main__"})
    assert "`StreamDecoder` of phase1_tokens_embeddings.tokens" in borrowed("p1e3_streaming", (mine,))


def test_what_a_notebook_hands_out_may_be_used():
    names = {"__name__": "__main__"}
    exec("from phase3_paged_attention.paging import hash_block\ndef f(x): return hash_block(x)", names)
    assert borrowed("p3e3_prefix", (names["f"],)) is None
    assert borrowed("p1e1_pairs", (names["f"],)) is not None


def test_the_learner_is_told_with_a_smile(capsys):
    with pytest.raises(NotYet, match="borrowed"):
        check("p1e1", *answers(f"from {BPE} import merge_pair\ndef merge(*args): return merge_pair(*args)"))
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "it is the course's own :-) Write yours" in out and "`merge_pair`" in out
