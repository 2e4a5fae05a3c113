"""`lab course`: the whole course in its short form, told in a screen or two. What its scripts print goes into a log."""

import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import IO

from rich.table import Table

from labkit.catalog import all_scripts, first_line
from labkit.claims import CLAIMS, measured_claims, verdict_of
from labkit.foreign import visible
from labkit.interrupts import STOPPED, ctrl_c_waits
from labkit.paths import check_writable, outputs, short
from labkit.reports import read_predictions
from labkit.terminal import Page, escape

LAST = "many_users"  # shown as it runs
MARKS = {0: "[green]✓[/]", 1: "[red]✗[/]", 2: "[yellow]○[/]"}
OUTCOMES = {1: "what must hold on every machine did not", 2: "could not run"}
NEXT = """Read [bold]phase1_tokens_embeddings/README.md[/], and run its scripts: lab run 1 --predict
Play in its notebook: jupyter lab notebooks/phase1_tokens_embeddings.ipynb
See what all this becomes: lab serve, and open the page that it names"""


def take_course(console: Page) -> int:
    """Run every script in its quick form.

    Returns:
        The gravest exit code of a script: 0 if all went well.
    """
    log = outputs() / "course.log"
    check_writable(log)
    *others, last = sorted(
        all_scripts(), key=lambda script: script.stem == LAST
    )  # the others keep their order
    console.print(
        f"{len(others) + 1} scripts in their short form. What they print goes to {escape(short(log))}."
    )
    codes, phase = [], None
    with log.open("wb") as file:
        for script in others:
            if script.parent != phase:
                phase = script.parent
                console.print(f"\n[bold]{phase.name.replace('_', ' ')}[/]", highlight=False)
            began = time.perf_counter()
            with console.status(f"{script.stem} ..."):
                code, complaint = run_script(script, file)
            if code == STOPPED:
                return code
            codes.append(code)
            console.print(line_of(console, script, code, complaint, time.perf_counter() - began))
    console.print("\n[bold]And now all of it together[/]")
    codes.append(run_script(last, None)[0])
    if codes[-1] == STOPPED:
        return STOPPED
    counts = Counter(
        verdict_of(measured_claims()[0].get(c.id, [])) for claims in CLAIMS.values() for c in claims
    )
    verdicts = ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common())
    console.print(
        f"\n[bold]The claims of three articles[/]: {verdicts}. [bold]lab claims[/] shows each.",
        highlight=False,
    )
    console.print(f"\n[bold]Where to go next[/]\n{NEXT}", highlight=False)
    return max(code if code >= 0 else 1 for code in codes)  # below 0: killed


def run_script(script: Path, log: IO[bytes] | None) -> tuple[int, str]:
    """A script's exit code, and the last line that it complained with.

    Args:
        log: takes what it prints; None: the terminal does.
    """
    if log is not None:
        log.write(f"\n===== {script.parent.name}/{script.name}\n".encode())
        log.flush()
    try:
        with ctrl_c_waits():
            errors = None if log is None else subprocess.PIPE
            done = subprocess.run([sys.executable, script, "--quick"], stdout=log, stderr=errors)
    except KeyboardInterrupt:
        return STOPPED, ""
    complaint = (done.stderr or b"").decode("utf-8", errors="replace").strip()
    if log is not None:
        log.write(done.stderr)
    return done.returncode, complaint.rpartition("\n")[2]


def line_of(console: Page, script: Path, code: int, complaint: str, seconds: float) -> Table:
    """What a script shows, how many of its predictions held, how long it took."""
    told, held = escape(first_line(script)), ""
    if code:
        told += (
            f"\n[red]{escape(visible(complaint, 300)) or OUTCOMES.get(code, f'ended with code {code}')}[/]"
        )
    report = outputs() / "reports" / script.parent.name / f"{script.stem}.json"
    with suppress(ValueError):  # no report
        checked = [p for p in read_predictions(report) if not p.needs]
        if code in (0, 1):  # otherwise it is an earlier run's
            held = f"{sum(bool(p.holds) for p in checked)} of {len(checked)}"
    row = Table.grid(padding=(0, 1))
    row.add_column(width=1)
    row.add_column(width=22, overflow="fold")
    row.add_column(width=max(10, console.width - 46))
    row.add_column(width=8, justify="right")
    row.add_column(width=6, justify="right")
    row.add_row(MARKS.get(code, MARKS[1]), f"[bold]{script.stem}[/]", told, held, f"{seconds:.0f} s")
    return row
