"""A reader that is gone, a disk that is full, streams that are closed. Each in a process of its own."""

import io
import os
import re
import subprocess
import sys

import pytest

from labkit import command
from labkit.paths import ROOT
from labkit.terminal import Page

PRINTS = (
    "from labkit.terminal import Page, run; raise SystemExit(run(lambda: Page().print('word ' * 5000) or 0))"
)
HELPS = "from labkit.command import main; raise SystemExit(main(['run', '--help']))"
FAILS = "from labkit.terminal import run; raise SystemExit(run(lambda: int('x')))"
ASKS = """
from labkit.lab import run_lab
def story(lab): lab.predict("a", "how many", 1, 1)
raise SystemExit(run_lab(story, "doc", argv=["--predict"]))
"""


def outcome(program, redirect="", **environment):
    """Exit code, stdout and stderr of a program that a shell starts."""
    done = subprocess.run(
        ["bash", "-c", f'"$0" -c "$1" {redirect}', sys.executable, program],
        capture_output=True, text=True, timeout=60, env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )  # fmt: skip
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("program", [PRINTS, HELPS])
def test_a_reader_that_is_gone_ends_it_quietly(program):
    assert outcome(program, "| true; exit ${PIPESTATUS[0]}") == (141, "", "")


@pytest.mark.parametrize("program", [PRINTS, HELPS])
def test_a_full_disk_is_one_line(program):
    code, _, error = outcome(program, "> /dev/full")
    assert code == 2 and error.count("\n") == 1 and "No space left on device" in error


@pytest.mark.parametrize(("program", "redirect"), [(PRINTS, ">&-"), (PRINTS, "2>&-"), (ASKS, ">&- 2>&- <&-")])
def test_closed_streams_lead_nowhere(program, redirect, tmp_path):
    """A question that nothing can answer is no guess."""
    assert outcome(program, redirect, INFERENCE_LAB_OUTPUTS=str(tmp_path))[0] == 0


@pytest.mark.parametrize("redirect", ["2>&-", "2> /dev/full", "2> /dev/full > /dev/full"])
def test_a_mistake_that_cannot_be_read_keeps_its_code(redirect):
    assert outcome(FAILS, redirect) == (2, "", "")


@pytest.mark.parametrize(("columns", "width"), [("1", 30), ("40", 40), ("60", 60), ("9" * 20, 100)])
def test_lines_are_as_wide_as_the_terminal(monkeypatch, columns, width):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    with monkeypatch.context() as patch:  # pytest itself fills lines of such a width with `-v`
        patch.setenv("COLUMNS", columns)
        patch.setattr(sys, "stdout", terminal)
        assert command.main(["claims"]) == command.main(["list"]) == 0
        assert Page(file=io.StringIO()).width == 100
    shown = re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue())
    assert max(map(len, shown.splitlines())) <= width
