"""An answer that calls the course's own part is refused, and so is one that changes its grader."""

import pytest

from exercises.grading import NotYet, check
from exercises.judging import comparing
from exercises.judging.own_work import AsItWas, borrowed
from exercises.judging.registry import find
from exercises.judging.sandbox import judge, judge_safely

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


@pytest.mark.parametrize(
    "line",
    [
        "judging.difference = lambda *args: None",
        "judging.difference.__code__ = (lambda *args: None).__code__",
    ],
)
def test_a_change_of_the_grader_is_told(line):
    merge = f"import sys\ndef merge(*args):\n    judging = sys.modules['.'.join(['exercises', 'judging', 'comparing'])]\n    {line}\n"
    verdict = judge_safely(find("p1e1_pairs"), answers(merge))
    assert verdict.diagnosis == "changes-grader" and "exercises.judging.comparing.difference" in verdict.says


def test_the_grader_is_put_back_also_where_python_itself_was_changed():
    """In a thread, the next answer is judged by what this one leaves."""
    real = comparing.difference
    merge = (
        "import builtins, sys\ndef merge(*args):\n    builtins.len = None\n"
        "    sys.modules['.'.join(['exercises', 'judging', 'comparing'])].difference = None\n"
    )
    try:
        verdict = judge(find("p1e1_pairs"), answers(merge))
        assert (verdict.diagnosis, verdict.about) == ("changes-python", "len")
        assert comparing.difference is real
    finally:
        comparing.difference = real


def test_everything_is_put_back():
    as_it_was = AsItWas()
    assert as_it_was.put_back() is None
    real, code = comparing.same, comparing.difference.__code__
    comparing.same = lambda *args: True
    comparing.difference.__code__ = (lambda *args: None).__code__
    try:
        assert as_it_was.put_back() == "exercises.judging.comparing.same"
        assert comparing.same is real and comparing.difference.__code__ is code
    finally:
        comparing.same, comparing.difference.__code__ = real, code
