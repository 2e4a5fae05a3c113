"""The judge of `model_files.py` finds what it is there to find."""

import pytest

from tests.fuzzing.model_files import CONTROL, what_is_wrong


def refuse(message: str):
    raise ValueError(message)


def compute():
    while True:
        pass


@pytest.mark.parametrize(
    ("read", "finding"),
    [
        (lambda: {}["a"], "KeyError"),
        (compute, "no answer in 1.0 s"),
        (lambda: bytes(2 * 2**30), "MemoryError"),
        (lambda: refuse(CONTROL), "no short line"),
        (lambda: refuse("x" * 10_000), "no short line"),
        (lambda: refuse(""), "no short line"),
    ],
    ids=["traceback", "hang", "memory", "control codes", "a book", "nothing said"],
)
def test_the_judge_finds_what_a_bad_reader_does(tmp_path, read, finding):
    (found,) = what_is_wrong(lambda _: read(), tmp_path, sound=False, seconds=1.0)
    assert finding in found
