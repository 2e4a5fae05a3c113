"""The tables of a class."""

from rich.console import Console

from exercises.classroom import report
from exercises.classroom.grade import Graded
from exercises.classroom.submission import Answer
from exercises.judging.verdict import Verdict
from tests.exercises.classroom.handed_in import of


def test_the_table_fits_into_60_columns(capsys):
    name = "Wolfeschlegelsteinhausenbergerdorff " * 2
    handed_in = of(name, tries=12, hints=4)
    verdict = Verdict("not yet", "merge-overlaps")
    one = Graded(name, "p1e1_pairs", handed_in.answers["p1e1_pairs"], verdict, ["x " * 80])
    report.show(Console(width=60), report.totals_of([handed_in], [one]), [one])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 60 and "0 of 1" in out and "merge-overlaps" in out


def test_what_a_teacher_should_see_is_told_however_rare(capsys):
    often = [f"mistake-{number}" for number in range(9)]
    mistakes = [*often, *often, "endless", "wrong-result"]
    graded = [Graded("a", "p1e1_pairs", Answer(cells=[]), Verdict("not yet", m)) for m in mistakes]
    report.show(Console(width=60), [], graded)
    out = capsys.readouterr().out
    assert "1 p1e1 endless" in out and "wrong-result" not in out and "mistake-8" not in out


def test_a_table_for_a_spreadsheet_holds_no_formula():
    one = Graded("=cmd()", "p1e1_pairs", Answer(cells=[]), Verdict("correct"))
    assert "'=cmd()" in report.as_csv([one])
