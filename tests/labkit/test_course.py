"""The course in a screen or two: a line a script, everything else in a log."""

import json

import pytest

from labkit import command, course
from labkit.interrupts import STOPPED
from labkit.paths import outputs
from labkit.predictions import Prediction


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """Three scripts of one phase: one ends well, one breaks, the last is shown as it runs."""
    folder = tmp_path / "phase9_clouds"
    folder.mkdir()
    report = outputs() / "reports" / folder.name / "good.json"
    predictions = [
        Prediction("a", "?", 1, 1),
        Prediction("b", "?", 1, 2, kind="timing"),
        Prediction("c", "?", needs="GPU"),
    ]
    text = json.dumps({"predictions": [p.to_json() for p in predictions]})
    (folder / "good.py").write_text(
        f'"""What a good one shows."""\nfrom pathlib import Path\nprint("much to read")\n'
        f"Path({str(report)!r}).parent.mkdir(parents=True, exist_ok=True)\nPath({str(report)!r}).write_text({text!r})"
    )
    (folder / "many_users.py").write_text('"""All together."""\nprint("eight stories")')
    (folder / "poor.py").write_text(
        '"""What a poor one shows."""\nimport sys\nsys.exit("error: no [red]disk")'
    )
    monkeypatch.setattr(course, "all_scripts", lambda level: sorted(folder.glob("*.py")))
    return folder


def test_a_line_a_script_and_the_rest_in_a_log(scripts, capfd):
    assert command.main(["course"]) == 1
    out, _ = capfd.readouterr()
    rows = {line.split()[1]: line for line in out.splitlines() if line.startswith(("✓", "✗", "○"))}
    good = rows["good"]
    assert good.startswith("✓") and "What a good one shows" in good and "1 of 2" in good
    assert rows["poor"].startswith("✗") and "error: no [red]disk" in out
    assert "phase9 clouds" in out and "much to read" not in out
    assert out.index("poor") < out.index("eight stories") < out.index("The claims of the source articles")
    log = (outputs() / "course.log").read_text()
    assert "===== phase9_clouds/good.py" in log and "much to read" in log and "no [red]disk" in log


def test_a_stop_stops_the_course(scripts, capfd):
    (scripts / "good.py").write_text(f'"""Stopped."""\nimport sys\nsys.exit({STOPPED})')
    assert command.main(["course"]) == STOPPED
    assert "eight stories" not in capfd.readouterr().out
