"""When two values are the same, how a value is shown, and what a box looks like."""

from types import SimpleNamespace as Namespace

import numpy as np
import pytest
import torch

from exercises.grading import NotYet, Verdict
from exercises.judging import boxes
from exercises.judging.comparing import difference, same, show, show_both, verdict_of
from exercises.judging.scripts import present, run_script

# ------------------------------------------------------------------ comparing


@pytest.mark.parametrize(
    ("got", "expected", "diagnosis"),
    [
        (2.0, 2, None),
        (np.float32(2.5), 2.5, None),
        (torch.tensor(2.5), 2.5, None),
        (0.1 + 0.2, 0.3, None),
        ((1, 2), [1, 2], None),
        (torch.ones(2, 3, dtype=torch.bfloat16), torch.ones(2, 3), None),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), None),
        ({1: 2}, {1: 2.0}, None),
        ({2, 1}, {1, 2}, None),
        (2.1e-6, 2e-6, "wrong-result"),
        (10**20 + 1, 10**20, "wrong-result"),
        (torch.tensor([float("nan"), 1.0]), torch.tensor([1.0, 1.0]), "wrong-result"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "wrong-result"),
        (torch.zeros(2, 3), torch.zeros(3, 2), "wrong-shape"),
        ([0.0, 0.0], torch.zeros(2), "wrong-type"),
        (torch.zeros(2), [0.0, 0.0], "wrong-type"),
        (None, torch.zeros(2), "returns-nothing"),
        (None, None, None),
        (1, None, "wrong-result"),
        (2, True, "wrong-result"),
        ("2", 2, "wrong-type"),
        ("abd", "abc", "wrong-result"),
        ({1: 2}, {1: 2, 3: 4}, "wrong-result"),
        ({1: 2, 3: 4}, {1: 2}, "wrong-result"),
        ([(1, 2)], {(1, 2): 1}, "wrong-type"),
        ({1}, {1, 2}, "wrong-result"),
    ],
)
def test_difference(got, expected, diagnosis):
    found = difference(got, expected)
    assert (found and found[0]) == diagnosis, found
    assert same(got, expected) is (diagnosis is None)


def test_show_never_raises_and_is_never_long():
    class Hostile:
        def __repr__(self):
            raise RuntimeError

    assert "Hostile" in show(Hostile())
    assert "shape (50, 50)" in show(torch.zeros(50, 50))
    assert show(torch.tensor([[1.0, 0.25]])) == "[[1.  , 0.25]]"
    for value in (list(range(10**5)), {i: i for i in range(10**5)}, "x" * 10**6, torch.randn(14, 14)):
        assert len(show(value)) < 3000


def test_floats_are_shown_with_five_digits_or_in_full_if_they_would_look_the_same():
    values = [1.0986123085021973, {"x": (0.1 + 0.2,)}, 123456.789, 0.000123456789, [1e300, 0.0, "a"]]
    assert show(values) == "[1.0986, {'x': (0.3,)}, 123456.79, 0.00012346, [1e+300, 0.0, 'a']]"
    got, expected = show_both(torch.tensor([1.00002]), torch.tensor([1.0001]))
    assert got != expected
    v = verdict_of(NotYet("x", "", got=[1.0000123], expected=[1.0000456]))
    assert (v.got, v.expected) == ("[1.0000123]", "[1.0000456]")


# ------------------------------------------------------------------ boxes


def test_a_box_shows_texts_as_they_are_and_breaks_lines_between_words(adding, capsys):
    values = ", ".join(f"{n}.{n}" for n in range(100, 160))
    v = Verdict("not yet", "long-one", "word " * 80, f"f([{values}])", "x\n" + "y" * 250, "[b]1 & 2[/b]")
    boxes.display(boxes.verdict_box(adding, v))
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert max(map(len, lines)) <= 100 and "✗ Not yet · 1.0 Add <two> numbers" in lines[0]
    assert {f"{word}," for word in values.split(", ")[1:-1]} <= set(out.split())
    assert "[b]1 & 2[/b]" in out and out.count("y") > 250


def test_a_script_shows_a_result_of_another_kind_at_its_own_statement():
    def played(taken):
        return run_script("p = Pool(); p.take(); p.size", Pool=lambda: Namespace(take=lambda: taken, size=3))

    assert present(played((1,)), played(1)) == ("p.take() gives (1,)", "p.take() gives 1")
