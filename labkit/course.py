"""`lab course`: runs the scripts in their short form and prints a line for each. Their output goes to a log file."""

import os
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.table import Table

from labkit.catalog import Level, all_scripts, first_line
from labkit.claims import CLAIMS, measured_claims, verdict_of
from labkit.foreign import visible
from labkit.interrupts import STOPPED, in_its_own_process
from labkit.paths import check_writable, outputs, short
from labkit.reports import read_report, report_of
from labkit.terminal import Page, escape

LAST = "many_users"  # its output is shown
MARKS = {0: "[green]✓[/]", 1: "[red]✗[/]", 2: "[yellow]○[/]"}
OUTCOMES = {1: "a prediction that must hold on every machine failed", 2: "could not run"}
NEXT = """Read [bold]phase1_tokens_embeddings/README.md[/], and run its scripts: lab run 1 --predict
Play in its notebook: jupyter lab notebooks/phase1_tokens_embeddings.ipynb
Start the server: lab serve, and open the page that it names"""


def take_course(console: Page, level: Level | None) -> int:
    """Run the scripts of a level, or all of them, in their quick form.

    Returns:
        The highest exit code of the scripts: 0 if all succeeded.
    """
    log = outputs() / "course.log"
    check_writable(log)
    # Only the last one changes its place.
    *others, last = sorted(all_scripts(level), key=lambda script: script.stem == LAST)
    console.print(
        f"{len(others) + 1} scripts in their short form. Their output goes to {escape(short(log))}."
    )
    log.write_bytes(b"")
    codes, phase = [], None
    for script in others:
        if script.parent != phase:
            phase = script.parent
            console.print(f"\n[bold]{phase.name.replace('_', ' ')}[/]", highlight=False)
        began = time.perf_counter()
        with console.status(f"{script.stem} ..."):
            code, last_line = run_quietly(script, log)
        if code == STOPPED:
            return code
        codes.append(code)
        console.print(line_of(console, script, code, last_line, time.perf_counter() - began))
    console.print("\n[bold]All parts together[/]")
    codes.append(run_script(last, "--quick"))
    if codes[-1] == STOPPED:
        return STOPPED
    found, _ = measured_claims()
    counts = Counter(verdict_of(found.get(claim.id, [])) for claims in CLAIMS.values() for claim in claims)
    verdicts = ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common())
    console.print(
        f"\n[bold]The claims of the source articles[/]: {verdicts}. [bold]lab claims[/] shows each.",
        highlight=False,
    )
    console.print(f"\n[bold]Where to go next[/]\n{NEXT}", highlight=False)
    return max(code if code >= 0 else 1 for code in codes)  # below 0: killed


def run_script(script: Path, *options: str, **settings: Any) -> int:
    """Run a script in its own process. It ignores shared options that it does not have.

    Args:
        settings: of `subprocess.run`.

    Returns:
        Its exit code.
    """
    return in_its_own_process(str(script), *options, env=os.environ | {"INFERENCE_LAB_RUN": "1"}, **settings)


def run_quietly(script: Path, log: Path) -> tuple[int, str]:
    """Run a script with its output in `log`. Returns its exit code and its last line."""
    with log.open("ab") as file:
        file.write(f"\n===== {script.parent.name}/{script.name}\n".encode())
        file.flush()
        code = run_script(script, "--quick", stdout=file, stderr=subprocess.STDOUT)
    return code, log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]


def line_of(console: Page, script: Path, code: int, last_line: str, seconds: float) -> Table:
    """Build the line of a script: its subject, the number of predictions that held, the seconds."""
    told, held = escape(first_line(script)), ""
    if code:
        failure = escape(visible(last_line, 300)) or OUTCOMES.get(code, f"ended with code {code}")
        told += f"\n[red]{failure}[/]"
    with suppress(ValueError):  # no report
        checked = [p for p in read_report(report_of(script)).predictions if not p.needs]
        if checked and code in (0, 1):  # otherwise the report belongs to an earlier run
            held = f"{sum(bool(p.holds) for p in checked)} of {len(checked)}"
    row = Table.grid(padding=(0, 1))
    row.add_column(width=1)
    row.add_column(width=22, overflow="fold")
    row.add_column(width=max(10, console.width - 46))
    row.add_column(width=8, justify="right")
    row.add_column(width=6, justify="right")
    row.add_row(MARKS.get(code, MARKS[1]), f"[bold]{script.stem}[/]", told, held, f"{seconds:.0f} s")
    return row
