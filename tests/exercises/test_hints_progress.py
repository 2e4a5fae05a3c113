"""Hints climb a ladder, progress is noted, and neither costs the lesson."""

import subprocess
import sys

import pytest

from exercises.grading import NotYet, Verdict, check, hint
from exercises.judging import progress
from labkit.paths import ROOT, write_whole
from tests.exercises.changed import solution
from tests.exercises.conftest import minus, right, stub, times

# ------------------------------------------------------------------ hints


def test_a_hint_left_in_the_notebook_does_not_climb_by_itself(capsys):
    def shown(*rung):
        capsys.readouterr()
        hint("p1e1", *rung)
        return capsys.readouterr().out

    for _ in range(3):
        assert "1 of 4" in (out := shown()) and 'hint("p1e1_pairs", 2)' in out
    check("p1e1", *solution("p1e1_pairs", {}))
    assert "1 of 4" in shown()
    with pytest.raises(NotYet):
        check("p1e1", lambda tokens: {}, lambda tokens, pair, new_id: [])
    assert "2 of 4" in shown() and "2 of 4" in shown()
    assert "3 of 4" in shown(3) and "3 of 4" in shown()
    assert progress.of("p1e1_pairs")["hints"] == 3


# ------------------------------------------------------------------ progress


def test_progress_counts_answers_not_stubs(adding, capsys):
    for answer in (stub, minus, times):
        with pytest.raises(NotYet):
            check("p1t1_add", answer)
    tried = {"tries": 2, "last": "wrong-result", "stuck": True}
    assert progress.of("p1t1_add") == progress.FRESH | tried
    check("p1t1_add", right)
    assert "Solved, after 3 tries." in capsys.readouterr().out
    with pytest.raises(NotYet):
        check("p1t1_add", minus)
    check("p1t1_add", right)
    assert "\n  Solved.  " in capsys.readouterr().out
    entry = progress.of("p1t1_add")
    assert entry["solved"] and entry["tries"] == 3


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"exercises": 3}', '{"exercises": {"a": 1}}', '{"version": 1}']
)
def test_a_broken_progress_file_costs_the_notes_only_and_so_does_a_strange_entry(adding, content):
    write_whole(progress.path(), content)
    assert progress.of("p1t1_add") == progress.FRESH
    check("p1t1_add", right)
    assert progress.of("p1t1_add")["solved"]
    progress.path().write_text('{"exercises": {"p1t1_add": {"tries": "many", "solved": true, "else": 1}}}')
    assert progress.of("p1t1_add") == progress.FRESH | {"solved": True}


def test_kernels_that_note_at_the_same_time_lose_nothing(adding):
    note = (
        "import sys; from exercises.judging import progress; from exercises.judging.verdict import Verdict\n"
        "for i in range(50): progress.note_check(f'{sys.argv[1]}-{i}', Verdict('correct'))"
    )
    kernels = [subprocess.Popen([sys.executable, "-c", note, which], cwd=ROOT) for which in "abc"]
    assert [kernel.wait(timeout=60) for kernel in kernels] == [0, 0, 0]
    assert sorted(progress.load()) == sorted(f"{which}-{i}" for which in "abc" for i in range(50))


def test_progress_that_cannot_be_written_is_told(adding, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INFERENCE_LAB_OUTPUTS", str(tmp_path / "file" / "below"))
    check("p1t1_add", right)
    assert capsys.readouterr().err.count("cannot be noted") == 1


def test_demonstrations(monkeypatch, tmp_path):
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__file__", str(ROOT / "exercises" / "phase1" / "e1_pairs.py"), raising=False)
    progress.note_check("p1e1_pairs", Verdict("correct"))
    assert progress.load() == {}  # the course's own solution solves nothing
    monkeypatch.setattr(main, "__file__", str(tmp_path / "mine.py"))
    assert not progress.is_demonstration()
