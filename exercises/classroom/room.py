"""Where answers are run again: a process in a clean copy of the course, that takes one after the other.

    {"exercise": "p1e1_pairs", "cells": ["def count_pairs ..."]}      a line in, on stdin
    {"state": "not yet", "diagnosis": "merge-overlaps", ...}          a line out, on stdout: the verdict

Each answer is run in a process of its own, a copy of this one as it was before any answer (exercises/judging/sandbox.py). It
has the time of the exercise and 2 GiB, and may start no processes.
"""

import contextlib
import io
import json
import sys
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import nbformat

from exercises.judging.plain_runs import run_cells, without_magic
from exercises.judging.registry import find
from exercises.judging.sandbox import judge, judge_safely
from exercises.judging.verdict import Exercise, NotAttempted, NotYet, Verdict

STARTS_A_PROCESS = {
    *("os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.exec", "os.system", "os.startfile"),
    *("subprocess.Popen", "pty.spawn"),
}
STARTS_ONE_IN_C = {"fork", "vfork", "clone", "system", "popen", "posix_spawn", "posix_spawnp", "execve"}


def verdict_on(exercise: Exercise, cells: list[str]) -> Verdict:
    """Run the cells that an answer consists of, and judge what they define."""
    whole = replace(exercise, asks=("cells",), grade=partial(_run_and_judge, exercise))
    return judge_safely(whole, ([without_magic(cell) for cell in cells],))


def _run_and_judge(exercise: Exercise, cells: list[str]) -> str:
    sys.addaudithook(_no_processes)
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    names, ran = run_cells(nb, exercise.name, go_on=True)
    if any(name not in names for name in exercise.asks):
        for cell in ran:
            if cell["outcome"] == "failed":
                says = f"Code cell {cell['number'] + 1}: {cell['error']}: {cell['message']}"
                raise NotYet("raises", says)
        raise NotAttempted(f"`{next(n for n in exercise.asks if n not in names)}` is not there.")
    verdict = judge(exercise, [names[name] for name in exercise.asks])
    if verdict.state != "correct":
        raise verdict.to_error()
    return verdict.says


def _no_processes(event: str, args: tuple[Any, ...]) -> None:
    if event in STARTS_A_PROCESS or (event == "ctypes.dlsym" and args[1] in STARTS_ONE_IN_C):
        raise RuntimeError("an answer starts no other process")


def main() -> None:
    verdicts, sys.stdout = sys.stdout, io.StringIO()
    for line in sys.stdin:
        job = json.loads(line)
        exercise = find(job["exercise"])  # here, so that the graders of a phase are loaded once
        with contextlib.redirect_stdout(io.StringIO()):  # what answers print is of no interest here
            verdict = verdict_on(exercise, job["cells"])
        print(json.dumps(asdict(verdict)), file=verdicts, flush=True)


if __name__ == "__main__":
    main()
