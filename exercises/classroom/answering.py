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
from exercises.classroom.copies import shapes_of
from exercises.classroom.room import shut_in
from exercises.judging import transcript
from exercises.judging.plain_runs import run_cells, without_magic
from exercises.judging.registry import find
from exercises.judging.sandbox import BORROWED, calm_down, died, judge, limit_memory, run_apart
from exercises.judging.source_check import imported_source
from exercises.judging.transcript import Decoder, Encoder, Player, Recorder
from exercises.judging.verdict import Exercise, NotAttempted, NotYet, Verdict


def recorded(exercise: Exercise, answers: Sequence[Any]) -> tuple[Verdict, list[str]]:
    """Judge where the answers are, and write the transcript."""
    transcript.current = recorder = Recorder()
    try:
        recorder.write(Encoder([])(list(answers)))
        return judge(exercise, answers), recorder.lines
    finally:
        transcript.current = transcript.Off()


def replayed(exercise: Exercise, lines: Sequence[str]) -> Verdict:
    """Judge by the transcript."""
    player = Player(lines)
    transcript.current = player
    try:
        return judge(exercise, Decoder([])(json.loads(next(player.lines))), check_source=False)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, StopIteration) as error:
        return Verdict("not yet", "unusable-result", f"Its results cannot be read ({type(error).__name__}).")
    finally:
        transcript.current = transcript.Off()


def run_answer(name: str, cells: list[str]) -> bytes:
    """Run the cells and judge what they define. The verdict, then the transcript: a line each."""
    exercise = find(name)
    lines: list[str] = []
    try:
        if source := imported_source(cells):
            raise NotYet("borrowed", BORROWED.format(source[0].upper() + source[1:]), about=source)
        names = _defined_by(exercise, cells)
        verdict, lines = recorded(exercise, [names[asked] for asked in exercise.asks])
    except NotYet as error:
        verdict = Verdict(error.state, error.diagnosis, error.says, about=error.about)
    return "\n".join([json.dumps(asdict(verdict)), *lines]).encode()


def _defined_by(exercise: Exercise, cells: list[str]) -> dict[str, Any]:
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(without_magic(cell)) for cell in cells])
    check, hint = grading.check, grading.hint
    grading.check = grading.hint = lambda *_, **__: None  # the notebook's own calls do nothing here
    try:
        names, ran = run_cells(nb, exercise.name, go_on=True)
    finally:
        grading.check, grading.hint = check, hint
    if missing := [name for name in exercise.asks if name not in names]:
        for cell in ran:
            if cell["outcome"] == "failed":
                says = f"Code cell {cell['number'] + 1}: {cell['error']}: {cell['message']}"
                raise NotYet("raises", says[:2000])
        raise NotAttempted(f"`{missing[0]}` is not there.")
    return names


def replay_answer(name: str, cells: list[str], told: bytes) -> bytes:
    """The verdict that counts, and what the learner wrote: for the comparison with others."""
    first, *lines = told.decode().split("\n")
    claimed = Verdict(**{field: str(text)[:3000] for field, text in json.loads(first).items()})
    verdict = replayed(find(name), lines)  # also where there is no transcript: then nothing is correct
    forged = claimed.state == "correct" and verdict.state != "correct"
    if verdict.state != "correct" and claimed.state in ("not yet", "not attempted"):
        verdict = claimed  # in the words of the process that had the answer
    return json.dumps(
        {"verdict": asdict(verdict), "forged": forged, "shapes": shapes_of(name, cells)}
    ).encode()


def result_of(name: str, cells: list[str], isolated: bool) -> dict[str, Any]:
    """What is told of one answer."""
    seconds = find(name).seconds
    prepare = shut_in if isolated else calm_down
    work = partial(run_answer, name, cells)
    told, code, called = run_apart(work, seconds, prepare=prepare, at_most=transcript.LONGEST, until=0)
    verdict = died(code, seconds, called) if code != 0 or not told else None
    if verdict is None:
        replay = partial(replay_answer, name, cells, told)
        told, code, _ = run_apart(replay, 2 * seconds + 10, prepare=limit_memory, until=0)
        if code == 0:
            return json.loads(told)
        verdict = Verdict(
            "not yet", "unusable-result", "Its results could not be judged within time and memory."
        )
    return {"verdict": asdict(verdict), "forged": False, "shapes": {}}


def main(isolated: bool) -> None:
    for line in iter(sys.stdin.readline, ""):
        asked = json.loads(line)
        print(json.dumps(result_of(asked["exercise"], asked["cells"], isolated)), flush=True)


if __name__ == "__main__":
    print("ready", flush=True)
    main(isolated=sys.argv[1] == "isolated")
