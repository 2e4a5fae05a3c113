"""The judge of `model_files.py` finds what it is there to find, and the same case is the same file again."""

import random

import pytest

from tests.fuzzing import model_files
from tests.fuzzing.model_files import CONTROL, TARGETS, Target, run


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
def test_the_judge_finds_what_a_bad_reader_does(monkeypatch, read, finding):
    bad = Target(lambda *_: None, lambda _: read(), 1)
    monkeypatch.setattr(model_files, "SECONDS", 1.0)
    monkeypatch.setattr(model_files, "TARGETS", {"bad": bad})
    monkeypatch.setattr(model_files, "warm_up", lambda: None)
    (found,) = run(seed=3, count=1, first=18)
    assert found.startswith("model_files --seed 3 --case 18: bad: ") and finding in found


@pytest.mark.parametrize("name", TARGETS)
def test_a_case_is_the_same_file_again(tmp_path, name):
    def files(number: int) -> dict[str, bytes]:
        for case in (number, 5):  # whatever was made before
            folder = tmp_path / f"{number} {case}"
            folder.mkdir()
            TARGETS[name].make(random.Random(f"1 {case}"), folder, False)
        return {file.name: file.read_bytes() for file in folder.iterdir()}

    assert files(1) == files(2)


def test_a_hundred_cases_and_more():
    assert run(seed=0, count=150) == []
