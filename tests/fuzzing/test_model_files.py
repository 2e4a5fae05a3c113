"""The judge of `model_files.py` finds what it is there to find, and the same case is the same file again."""

import random
import time

import pytest

from tests.fuzzing import model_files
from tests.fuzzing.model_files import CONTROL, TARGETS, Target, run


def make(rng, folder, sound):
    if sound:
        (folder / "sound").touch()


def bad(do):
    """A reader that does this with files that are not sound."""
    return lambda folder: (folder / "sound").exists() or do()


def refuse(message: str):
    raise ValueError(message)


def compute():
    while True:
        pass


@pytest.mark.parametrize(
    ("read", "finding"),
    [
        (bad(lambda: {}["a"]), "KeyError"),
        (bad(lambda: time.sleep(60)), "no answer in 1.0 s"),
        (bad(compute), "no answer in 1.0 s"),
        (bad(lambda: bytes(2 * 2**30)), "MemoryError"),
        (bad(lambda: refuse(CONTROL)), "no short line"),
        (bad(lambda: refuse("x" * 10_000)), "no short line"),
        (bad(lambda: refuse("")), "no short line"),
    ],
    ids=["traceback", "wait", "hang", "memory", "control codes", "a book", "nothing said"],
)
def test_the_judge_finds_what_a_bad_reader_does(monkeypatch, read, finding):
    monkeypatch.setattr(model_files, "SECONDS", 1.0)
    monkeypatch.setattr(model_files, "TARGETS", {"bad": Target(make, read, 1)})
    (found,) = run(seed=3, count=1, first=17)
    assert found.startswith("model_files --seed 3 --case 17: bad: ") and finding in found


def test_a_sound_file_must_be_read(monkeypatch):
    monkeypatch.setattr(model_files, "TARGETS", {"strict": Target(make, lambda folder: refuse("no"), 1)})
    found = run(seed=0, count=60)
    assert 0 < len(found) < 10 and all(one.endswith("strict: a sound file is refused: no") for one in found)


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
