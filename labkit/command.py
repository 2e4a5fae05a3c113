"""The `lab` command: lists and runs the scripts, shows the claims and the machine, checks exercises."""

import argparse
import difflib
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from rich.console import Console

from labkit.catalog import LEVELS, SCRIPTS, all_scripts, first_line, is_script, select
from labkit.claims import CLAIMS, SOURCES, measured_claims, reference_run, values_of, verdict_of
from labkit.course import run_script, take_course
from labkit.errors import LabError
from labkit.foreign import visible
from labkit.interrupts import STOPPED, become, in_its_own_process, is_a_program
from labkit.options import OPTIONS, SHARED_BY_ALL, Parser
from labkit.paths import ROOT
from labkit.terminal import READER_LEFT, Page, escape, run, titled

COLOURS = {"reproduced": "green", "corrected": "magenta", "not run yet": "dim"}
PROGRAMS = {  # each has its own options, which --help lists
    "serve": ("phase4_scheduler/serve.py", "an OpenAI-compatible server: lab serve [MODEL]"),
    "chat": ("phase4_scheduler/chat.py", "a conversation with a model in the terminal"),
    "mine": (
        "exercises/capstone/mine.py",
        "your own engine: its parts that you wrote, a story, its decisions compared with vLLM's",
    ),
    "web": ("web/serve.py", "the course as a web page with a model that computes in your browser"),
    "first-contact": (
        "phase5_real_gpu/measure_machine.py --first-contact",
        "the first ten minutes on a GPU: tests, kernels and the engine, compared with the card's limits",
    ),
    "fetch": (
        "phase2_attention_kvcache/fetch_model.py",
        "download a model once for offline use; without a name: a list of small open models",
    ),
    "convert": (
        "phase2_attention_kvcache/convert_model.py",
        "write a model as a GGUF file: lab convert tales tales.gguf --type Q8_0",
    ),
}
OUTCOMES = {0: "[green]ok[/]", 1: "[red]a prediction failed[/]", 2: "[yellow]could not run[/]"}


def list_scripts(console: Console, word: str | None) -> int:
    """List the scripts, or those of a level or a phase, each with its subject."""
    chosen = all_scripts(word) if word in LEVELS else select([word] if word else [])
    for phase, names in SCRIPTS.items():
        table = titled(phase, show_header=False, box=None)
        for name, its_level in names.items():
            if ROOT / phase / name in chosen:
                table.add_row(f"  {name}", f"[dim]{its_level}[/]", escape(first_line(ROOT / phase / name)))
        if table.rows:
            console.print(table)
            console.print()
    for name, meaning in LEVELS.items():
        console.print(f"[bold]{name}[/]: {meaning}", highlight=False)
    console.print(
        "Run a script: python PHASE/SCRIPT, or `lab run SCRIPT`; --help explains every script. "
        "`lab list core` lists one level, `lab list 1` one phase, `lab next` the next step."
    )
    return 0


def run_scripts(console: Console, words: list[str], passed_on: list[str]) -> int:
    """Run scripts in order, each in its own process: a script that fails does not stop the others."""
    scripts = select(words)
    refuse_mistakes(scripts, words, passed_on)
    if "--json" in passed_on and len(scripts) > 1:
        raise LabError("--json names one file, for one script: all reports are in outputs/reports")
    outcomes: list[tuple[Path, int, float]] = []
    for number, script in enumerate(scripts, 1):
        console.print()
        name = f"{script.parent.name}/{script.name}"
        console.rule(f"[bold cyan]{number} of {len(scripts)}  {name}", style="cyan", align="left")
        began = time.perf_counter()
        code = run_script(script, *passed_on)
        outcomes.append((script, code, time.perf_counter() - began))
        if code in (STOPPED, READER_LEFT):
            break  # the user stops all scripts
    if len(scripts) > 1:
        table = titled("What ran")
        table.add_column("script")
        table.add_column("outcome")
        table.add_column("seconds", justify="right")
        for script, code, seconds in outcomes:
            table.add_row(
                f"{script.parent.name}/{script.name}",
                OUTCOMES.get(code, f"[red]ended with code {code}[/]"),
                f"{seconds:.1f}",
            )
        console.print()
        console.print(table)
    return max(code if code >= 0 else 1 for _, code, _ in outcomes)  # below 0: killed


def refuse_mistakes(scripts: list[Path], words: list[str], passed_on: list[str]) -> None:
    """Refuse, before a script runs, an option that none has. (Scripts ignore an option that only others have.)

    Raises:
        LabError: an option is unknown (the message names the nearest option), or a script stands after an option.
    """
    written = " ".join(script.read_text(encoding="utf-8") for script in scripts)
    switches = {"--quick", "--predict", *re.findall(r'"(--[a-z-]+)",\s*action="store_true"', written)}
    for at, (before, word) in enumerate(pairwise(passed_on), 1):
        has_value = before.startswith("--") and "=" not in before and before not in switches
        if not word.startswith("-") and not has_value and (before.startswith("--") or is_script(word)):
            first = " ".join(map(visible, [*words, word, *passed_on[:at], *passed_on[at + 1 :]]))
            raise LabError(f"scripts come before options: lab run {first}")
    known = {*SHARED_BY_ALL, *(f"--{name}" for name in OPTIONS), *re.findall(r'"(--[a-z][a-z-]*)"', written)}
    for word in (word.partition("=")[0] for word in passed_on):
        if word.startswith("--") and word != "--" and word not in known:
            near = difflib.get_close_matches(word, sorted(known), 1, 0.75)
            raise LabError(
                f"no script here has the option {visible(word)}"
                + (f": did you mean {near[0]}?" if near else "; each lists its options with --help")
            )


def show_claims(console: Console) -> int:
    """Print the ledger: each claim of the source articles, with the results of the reference run and of this machine."""
    found, problems = measured_claims()
    reference = reference_run()
    counts: Counter[str] = Counter()
    for phase, claims in CLAIMS.items():
        table = titled(phase, width=console.width, show_lines=False)
        table.add_column("claim", no_wrap=True)
        table.add_column("what the source says; the reference run's verdict and yours", ratio=1)
        for claim in claims:
            predictions = found.get(claim.id, [])
            mine = (verdict_of(predictions), values_of(predictions))
            counts[mine[0]] += 1
            lines = [f"[dim]{claim.source}:[/] {escape(claim.says)}"]
            for whose, (verdict, values) in (
                ("reference", reference["claims"].get(claim.id, ("not run yet", ""))),
                ("yours", mine),
            ):
                colour = COLOURS.get(verdict, "yellow")
                told = f" [bold]{escape(visible(values, 300))}[/]" if values else ""
                lines.append(f"{whose}: [{colour}]{verdict}[/]{told}")
            table.add_row(claim.id, "\n".join(lines))
        console.print(table)
    console.print(f"Reference run: {escape(reference['machine'])}, {reference['when']}.", highlight=False)
    for line in problems:
        console.print(f"[yellow]{escape(line)}[/]", highlight=False, soft_wrap=True)
    console.print(
        "Yours: " + " · ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items())), highlight=False
    )
    titles = " ".join(f"{letter}: {escape(title)}." for letter, title in SOURCES.items())
    console.print(
        f"[dim]{titles} Reproduced: agrees within the script's tolerance. Corrected: the script that measures it explains "
        "the difference. Differs here: a figure that depends on the machine and its other programs, and does not agree. "
        "Reports: outputs/reports/[/]"
    )
    return 0


def show_doctor(console: Console) -> int:
    """Print what this machine has, and its effect on the course."""
    from labkit.doctor import examine

    table = titled("This machine", width=console.width)
    for column in ("", "what", "here, and what it means"):
        table.add_column(column, no_wrap=column != "here, and what it means")
    for f in examine():
        mark = "[green]✓[/]" if f.ok else "[yellow]○[/]"
        means = f.effect if f.ok or not f.remedy else f"{f.effect}. To change it: {f.remedy}".lstrip(". ")
        table.add_row(mark, f.what, f"[bold]{escape(f.value)}[/]{': ' * bool(means)}{escape(means)}")
    console.print(table)
    return 0


def exercises(command: str, *words: str) -> int:
    """Run a command about notebooks or exercises, from the folder `exercises`, in its own process."""
    # A path is relative to the user's folder, but the process runs in the course's folder.
    if command != "submit":
        is_path = Path.is_dir if command == "grade" else Path.is_file
        words = tuple(str(Path(w).resolve()) if is_path(Path(w)) else w for w in words)
    folder = "classroom" if command in ("submit", "grade") else "publishing"
    module = ("-m", f"exercises.{folder}.commands", command, *words)
    if command == "grade" and is_a_program():
        os.chdir(ROOT)
        return become(*module)
    return in_its_own_process(*module, cwd=ROOT)


def build_parser() -> argparse.ArgumentParser:
    def level(word: str) -> str:
        """Accept "gpu" for "GPU"."""
        return next((name for name in LEVELS if name.lower() == word.lower()), word)

    parser = Parser(prog="lab", description=__doc__, epilog="lab COMMAND --help explains one command.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def add(name: str, does: str, more: str = "") -> argparse.ArgumentParser:
        return commands.add_parser(name, help=does, description=f"{does[0].upper()}{does[1:]}. {more}")

    add("list", "all scripts, or some, with their subjects").add_argument(
        "word", nargs="?", type=level, metavar="LEVEL|PHASE", help=f"only one level ({', '.join(LEVELS)}) or phase"
    )  # fmt: skip
    run_these = add(
        "run",
        "run all scripts, a phase (1, phase1) or some scripts (kv_cache_lab); options go to the scripts",
        "Options for the scripts come last: lab run 1 --quick --predict",
    )
    run_these.add_argument("what", nargs="*", help="phases or scripts (all)")
    course = add("course", "run the core scripts in their short form, with a line for each")
    course.add_argument("--all", action="store_true", help="the scripts of all levels")
    add("claims", "the claims of the source articles, and the measurements here")
    add("doctor", "what runs on this machine, what is skipped, and how to change that")
    for name, (_, does) in PROGRAMS.items():
        commands.add_parser(name, add_help=False, help=does)
    add("next", "the next script or exercise on a path").add_argument(
        "level", nargs="?", type=level, choices=list(LEVELS), default="core", metavar="LEVEL",
        help=f"the level beside the core ({', '.join(LEVELS)})",
    )  # fmt: skip
    add("progress", "the solved exercises, hints used, and the score of your guesses")
    a_notebook = "its path, its name or its number, such as p1e1_pairs or 1.1"
    for name, word, means, does in (
        ("check", "notebook", a_notebook, "run a notebook from top to bottom, and report the results"),
        ("hint", "exercise", "its name or number", "show the next hint, as hint(...) does in a notebook"),
        ("reset", "notebook", a_notebook, "write a fresh exercise notebook; your old one is kept"),
        ("submit", "name", "your name, such as 'Ada Lovelace'", "write one file with all your answers"),
        ("grade", "folder", "with the submissions", "for teachers: run all answers again, and print a table"),
    ):
        many = "+" if name == "submit" else 1  # a name may have several words, quoted or not
        command = add(name, does)
        command.add_argument("words", nargs=many, metavar=word.upper(), help=means)
    command.add_argument("--only", nargs="+", default=[], metavar="EXERCISE", help="such as 1.1 2.1")
    return parser


def split_run(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split `run 1 kv_cache_lab --quick --seed 3` into the words for lab and the options for the scripts."""
    options_from = next((i for i, word in enumerate(argv) if word.startswith("-")), len(argv))
    if argv[:1] != ["run"] or argv[1:2] in (["-h"], ["--help"]):
        return list(argv), []
    return list(argv[:options_from]), list(argv[options_from:])


def main(argv: Sequence[str] | None = None) -> int:
    return run(lambda: _obey(sys.argv[1:] if argv is None else argv))


def _obey(argv: Sequence[str]) -> int:
    if argv and argv[0] in PROGRAMS:
        script, *options = PROGRAMS[argv[0]][0].split()
        return become(str(ROOT / script), *options, *argv[1:])
    words, passed_on = split_run(argv)
    parser = build_parser()
    args = parser.parse_args(words)
    if args.command is None:
        parser.print_help()
        return 0
    console = Page()
    match args.command:
        case "list":
            return list_scripts(console, args.word)
        case "course":
            return take_course(console, None if args.all else "core")
        case "claims":
            return show_claims(console)
        case "doctor":
            return show_doctor(console)
        case "run":
            return run_scripts(console, args.what, passed_on)
        case "next":
            return exercises("next", args.level)
        case "progress":
            return exercises("progress")
    return exercises(args.command, " ".join(args.words), *getattr(args, "only", []))


if __name__ == "__main__":
    raise SystemExit(main())
