"""The judge of `model_files.py` finds what it is there to find, and the same case is the same file again."""

import random
import time

import pytest

from tests.fuzzing import model_files
from tests.fuzzing.model_files import CONTROL, TARGETS, Target, run_target


def refuse(message: str):
    def read(folder):
        raise ValueError(message)

    return read


def waste_memory(folder):
    bytes(2 * 2**30)


@pytest.mark.parametrize(
    ("read", "finding"),
    [
        (lambda folder: {}["a"], "KeyError"),
        (lambda folder: time.sleep(60), "no answer after"),
        (waste_memory, "MemoryError"),
        (refuse(CONTROL), "no short line"),
        (refuse("x" * 10_000), "no short line"),
        (refuse(""), "no short line"),
    ],
    ids=["traceback", "hang", "memory", "control codes", "a book", "nothing said"],
)
def test_the_judge_finds_what_a_bad_reader_does(monkeypatch, read, finding):
    monkeypatch.setattr(model_files, "SECONDS", 1)
    monkeypatch.setitem(TARGETS, "bad", Target(lambda rng, folder: False, read))
    (found,) = run_target("bad", seed=3, count=1, first=17)
    assert found.startswith("bad --seed 3 --case 17: ") and finding in found


def test_a_sound_file_must_be_read(monkeypatch):
    monkeypatch.setattr(model_files, "warm_up", lambda target, top: None)
    monkeypatch.setitem(TARGETS, "strict", Target(lambda rng, folder: True, refuse("no")))
    (found,) = run_target("strict", seed=0, count=1)
    assert "a sound file is refused: no" in found


@pytest.mark.parametrize("name", TARGETS)
def test_a_case_is_the_same_file_again(tmp_path, name):
    def files(number: int) -> dict[str, bytes]:
        for case in (number, 5):  # whatever was made before
            folder = tmp_path / f"{number} {case}"
            folder.mkdir()
            TARGETS[name].make(random.Random(f"{name} 1 {case}"), folder)
        return {file.name: file.read_bytes() for file in folder.iterdir()}

    assert files(1) == files(2)


@pytest.mark.parametrize("name", TARGETS)
def test_a_few_cases_of_each_target(name):
    assert run_target(name, seed=0, count=5 if name == "command" else 50) == []
