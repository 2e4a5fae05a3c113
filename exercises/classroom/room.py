"""Where answers are run again: a process in a clean copy of the course, that takes one after the other.

    {"job": "3f9c", "exercise": "p1e1_pairs", "cells": ["def count_pairs ..."]}     a line in, on stdin
    3f9c {"state": "not yet", "diagnosis": "merge-overlaps", ...}                   a line out, on stdout: the verdict

Each answer is run in a process of its own, a copy of this one as it was before any answer (exercises/judging/sandbox.py). It
has the time of the exercise and 2 GiB, and may start no processes. The graders that judge it are not those that it finds by
name (`import exercises.phase1.grade_encode` gives a second copy), so it cannot empty their tables in passing.
"""

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import nbformat

from exercises import grading
from exercises.judging.own_work import imports_of
from exercises.judging.plain_runs import parsed, run_cells, without_magic
from exercises.judging.registry import exercises_of, find
from exercises.judging.sandbox import BORROWED, judge, judge_safely
from exercises.judging.verdict import Exercise, NotAttempted, NotYet, Verdict
from labkit.paths import ROOT

STARTS_A_PROCESS = {
    *("os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.exec", "os.system", "os.startfile"),
    *("subprocess.Popen", "pty.spawn"),
}
STARTS_ONE_IN_C = {"fork", "vfork", "clone", "system", "popen", "posix_spawn", "posix_spawnp", "execve"}
A_SOURCE = re.compile(
    r"exercises\.phase\d\.[de]\d+_|`[de]\d+_\w+` of exercises\.phase\d$"
)  # in the words of an import
A_SOLUTION = re.compile(r".*/(notebooks/solutions/|exercises/phase\d/[de]\d+_)[^/]+")  # the path of a file


@cache
def exercises_out_of_reach(phase: int) -> dict[str, Exercise]:
    """The exercises of a phase, with graders that no import finds any more."""
    own = exercises_of(phase)
    exercises_of.cache_clear()
    for module in list(sys.modules):
        if module.startswith(f"exercises.phase{phase}.grade"):
            del sys.modules[module]
    exercises_of(phase)
    return own


def verdict_on(name: str, cells: list[str]) -> Verdict:
    """Run the cells that an answer consists of, and judge what they define."""
    exercise = find(name)
    whole = replace(exercise, asks=("cells",), grade=partial(_watch_and_judge, exercise))
    return judge_safely(whole, ([without_magic(cell) for cell in cells],))


def _watch_and_judge(exercise: Exercise, cells: list[str]) -> str:
    """As _run_and_judge; but whoever takes the solution from the course gets no other verdict."""
    if source := _imported_source(cells):
        raise NotYet("borrowed", BORROWED.format(source[0].upper() + source[1:]), about=source)
    solutions: list[str] = []
    sys.addaudithook(partial(_note_solutions, solutions))
    sys.addaudithook(_no_processes)
    try:
        return _run_and_judge(exercise, cells)
    finally:
        if solutions:
            says = "Your answer opened a file of the course in which a solution stands. Write yours."
            raise NotYet("reads-a-solution", says, about=solutions[0])


def _run_and_judge(exercise: Exercise, cells: list[str]) -> str:
    """`exercise`: found by its name. Where it is sent to a new process, its graders are loaded there on arrival."""
    exercise = exercises_out_of_reach(exercise.phase)[exercise.name]
    found = find(exercise.name)  # what the answer finds, too
    as_it_was = vars(found).copy()
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    with _no_checks():
        names, ran = run_cells(nb, exercise.name, go_on=True)
    if any(name not in names for name in exercise.asks):
        for cell in ran:
            if cell["outcome"] == "failed":
                says = f"Code cell {cell['number'] + 1}: {cell['error']}: {cell['message']}"
                raise NotYet("raises", says)
        raise NotAttempted(f"`{next(n for n in exercise.asks if n not in names)}` is not there.")
    verdict = judge(exercise, [names[name] for name in exercise.asks])
    for field, value in as_it_was.items():
        if vars(found).get(field) is not value:
            what = f"{field} of {exercise.name}"
            says = f"Your answer changed `{what}`. Leave the grader as it is."
            raise NotYet("changes-grader", says, about=what)
    if verdict.state != "correct":
        raise verdict.to_error()
    return verdict.says


def _imported_source(cells: list[str]) -> str | None:
    """What the cells import of the source of an exercise, in words. Here it is a stub, in the learner's copy it is solved."""
    trees = [tree for cell in cells if (tree := parsed(cell))]
    uses = [words for tree in trees for words, _ in imports_of(compile(tree, "<answer>", "exec"))]
    return next((words for words in reversed(uses) if A_SOURCE.search(words)), None)


@contextlib.contextmanager
def _no_checks() -> Iterator[None]:
    """While a notebook's cells run, its own calls of `check` and `hint` do nothing."""
    check, hint = grading.check, grading.hint
    grading.check = grading.hint = lambda *_, **__: None
    try:
        yield
    finally:
        grading.check, grading.hint = check, hint


def _no_processes(event: str, args: tuple[Any, ...]) -> None:
    if event in STARTS_A_PROCESS or (event == "ctypes.dlsym" and args[1] in STARTS_ONE_IN_C):
        raise RuntimeError("an answer starts no other process")


def _note_solutions(found: list[str], event: str, args: tuple[Any, ...]) -> None:
    """Keep the paths of solutions that are opened. This copy of the course holds stubs: the graders read those."""
    if event == "open" and isinstance(args[0], (str, bytes)):
        path = Path(os.path.abspath(os.fsdecode(args[0])))
        if A_SOLUTION.fullmatch(path.as_posix()) and not path.is_relative_to(ROOT):
            found.append("/".join(path.parts[-3:]))


def main() -> None:
    verdicts, sys.stdout = sys.stdout, io.StringIO()
    for line in sys.stdin:
        job = json.loads(line)
        exercises_out_of_reach(int(job["exercise"][1]))  # here, so that a fork finds a phase's graders loaded
        with contextlib.redirect_stdout(io.StringIO()):  # what answers print is of no interest here
            verdict = verdict_on(job["exercise"], job["cells"])
        print(job["job"], json.dumps(asdict(verdict)), file=verdicts, flush=True)
