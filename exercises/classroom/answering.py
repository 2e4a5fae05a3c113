"""Inside a room: run one answer after the other, each in a fork of this process, and say what came out.

    {"exercise": "p1e1_pairs", "cells": ["def count_pairs ..."]}                        a line in, on stdin
    {"verdict": {"state": "not yet", "diagnosis": "merge-overlaps", ...}, ...}          a line out, on stdout

The fork with the answer writes a transcript (exercises/judging/transcript.py). Another fork, which runs no line of the answer,
replays it: its verdict counts.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import nbformat

from exercises import grading
from exercises.classroom.room import shut_in
from exercises.judging import transcript
from exercises.judging.plain_runs import run_cells, without_magic
from exercises.judging.registry import find
from exercises.judging.sandbox import calm_down, died, judge, limit_memory, run_apart
from exercises.judging.transcript import Player, Recorder, decoded
from exercises.judging.verdict import Exercise, NotAttempted, NotYet, Verdict


def recorded(exercise: Exercise, answers: Sequence[Any]) -> tuple[Verdict, list[str]]:
    """Judge where the answers are, and write the transcript."""
    transcript.current = recorder = Recorder()
    try:
        recorder.write(answers)
        return judge(exercise, answers), recorder.lines
    finally:
        transcript.current = None


def replayed(exercise: Exercise, lines: Sequence[str]) -> Verdict:
    """Judge by the transcript."""
    transcript.current = player = Player(lines)
    try:
        return judge(exercise, decoded(next(player.lines)))
    except Exception as error:  # no transcript, or one that no `Recorder` has written
        return Verdict("not yet", "unusable-result", f"Its results cannot be read ({type(error).__name__}).")
    finally:
        transcript.current = None


def run_answer(name: str, cells: list[str]) -> bytes:
    """Run the cells and judge what they define. The verdict, then the transcript: a line each."""
    exercise = find(name)
    lines: list[str] = []
    try:
        names = _defined_by(exercise, cells)
        verdict, lines = recorded(exercise, [names[asked] for asked in exercise.asks])
    except NotYet as error:
        verdict = Verdict(error.state, error.diagnosis, error.says)
    return "\n".join([json.dumps(asdict(verdict)), *lines]).encode()


def _defined_by(exercise: Exercise, cells: list[str]) -> dict[str, Any]:
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(without_magic(cell)) for cell in cells])
    grading.check = grading.hint = lambda *_, **__: None  # the notebook's own calls do nothing here
    names, ran = run_cells(nb, exercise.name, go_on=True)
    if missing := [name for name in exercise.asks if name not in names]:
        for cell in ran:
            if cell["outcome"] == "failed":
                says = f"Code cell {cell['number'] + 1}: {cell['error']}: {cell['message']}"
                raise NotYet("raises", says[:2000])
        raise NotAttempted(f"`{missing[0]}` is not there.")
    return names


def replay_answer(name: str, told: bytes) -> bytes:
    """The verdict that counts, and whether the answer's process claimed another one."""
    first, *lines = told.decode().split("\n")
    claimed = Verdict(**{field: str(text)[:3000] for field, text in json.loads(first).items()})
    verdict = claimed
    if claimed.state not in ("not yet", "not attempted"):
        verdict = replayed(find(name), lines)
    forged = verdict is not claimed and verdict.state != "correct"
    return json.dumps({"verdict": asdict(verdict), "forged": forged}).encode()


def result_of(name: str, cells: list[str], isolated: bool) -> dict[str, Any]:
    """What is told of one answer."""
    seconds = find(name).seconds
    ended = run_apart(partial(run_answer, name, cells), seconds, prepare=shut_in if isolated else calm_down)
    if ended.told:
        replay = partial(replay_answer, name, ended.told)
        if found := run_apart(replay, 2 * seconds + 10, prepare=limit_memory).told:
            return json.loads(found)
        says = "Its results could not be judged within time and memory."
        verdict = Verdict("not yet", "unusable-result", says)
    else:
        verdict = died(ended)
    return {"verdict": asdict(verdict), "forged": False}


def main(isolated: bool) -> None:
    for line in iter(sys.stdin.readline, ""):
        asked = json.loads(line)
        print(json.dumps(result_of(asked["exercise"], asked["cells"], isolated)), flush=True)


if __name__ == "__main__":
    print("ready", flush=True)
    main(isolated=sys.argv[1] == "isolated")
