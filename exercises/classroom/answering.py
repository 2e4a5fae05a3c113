"""Inside a room: run the answers of one learner, each in a fork of this process, and say what came out.

    {"p1e1_pairs": ["def count_pairs ..."], ...}                                        on stdin: the cells
    {"verdict": {"state": "not yet", "diagnosis": "merge-overlaps", ...}, ...}          on stdout, a line an answer

The fork with the answer writes a transcript (exercises/judging/transcript.py). Another fork, which runs no line of the answer,
replays it: its verdict counts.
"""

import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from types import SimpleNamespace
from typing import Any

from exercises import grading
from exercises.classroom.room import shut_in
from exercises.judging import transcript
from exercises.judging.judge import Exercise
from exercises.judging.plain_runs import run_cells
from exercises.judging.registry import find
from exercises.judging.sandbox import LARGEST_FILE, calm_down, died, judge, limit_memory, run_apart
from exercises.judging.transcript import decoded, encoded
from exercises.judging.verdict import NotAttempted, NotYet, Verdict


def recorded(exercise: Exercise, answers: Sequence[Any]) -> tuple[Verdict, bytes]:
    """Judge where the answers are, and write the transcript: this verdict, the answers, the results."""
    transcript.current = results = []
    try:
        verdict = judge(exercise, answers)
    finally:
        transcript.current = None
    return verdict, encoded([asdict(verdict), answers, *results])


def replayed(exercise: Exercise, told: bytes) -> tuple[Verdict, bool]:
    """Judge by the transcript. Returns the verdict, and whether the answer's process claimed to be correct, and is not."""
    claims = False
    try:
        first, *results = decoded(told)
        claimed = Verdict(**{field: str(text)[:3000] for field, text in first.items()})
        if claimed.state in ("not yet", "not attempted"):
            return claimed, False
        claims = True
        transcript.current = iter(results[1:])
        verdict = judge(exercise, results[0])
    except Exception as error:  # no transcript, or one that `recorded` has not written
        says = f"Its results cannot be read ({type(error).__name__})."
        verdict = Verdict("not yet", "unusable-result", says)
    finally:
        transcript.current = None
    return verdict, claims and verdict.state != "correct"


def run_answer(name: str, cells: list[str]) -> bytes:
    """Run the cells and judge what they define. Returns the transcript."""
    exercise = find(name)
    try:
        names = _defined_by(exercise, cells)
        _, told = recorded(exercise, [names[asked] for asked in exercise.asks])
        if len(told) > LARGEST_FILE:
            raise NotYet("too-much-data", f"The results of your answer are over {LARGEST_FILE:,} bytes.")
    except NotYet as error:
        return encoded([asdict(Verdict(error.state, error.diagnosis, error.says))])
    return told


def _defined_by(exercise: Exercise, cells: list[str]) -> dict[str, Any]:
    code = [SimpleNamespace(cell_type="code", source=cell, metadata={}) for cell in cells]
    grading.check = grading.hint = lambda *_, **__: None  # the notebook's own calls do nothing here
    names, ran = run_cells(SimpleNamespace(cells=code), exercise.name, go_on=True)
    if missing := [name for name in exercise.asks if name not in names]:
        for cell in ran:
            if cell["outcome"] == "failed":
                says = f"Code cell {cell['number'] + 1}: {cell['error']}: {cell['message']}"
                raise NotYet("raises", says[:2000])
        raise NotAttempted(f"`{missing[0]}` is not there.")
    return names


def result_of(name: str, cells: list[str], isolated: bool) -> dict[str, Any]:
    """What is told of one answer."""
    exercise = find(name)
    seconds = exercise.seconds

    def replay() -> bytes:
        verdict, forged = replayed(exercise, ended.told)
        return json.dumps({"verdict": asdict(verdict), "forged": forged}).encode()

    ended = run_apart(partial(run_answer, name, cells), seconds, prepare=shut_in if isolated else calm_down)
    verdict = died(ended)
    if ended.told:
        if found := run_apart(replay, 2 * seconds + 10, prepare=limit_memory).told:
            return json.loads(found)
        says = "Its results could not be judged within time and memory."
        verdict = Verdict("not yet", "unusable-result", says)
    return {"verdict": asdict(verdict), "forged": False}


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an answer may send it: the next is still to be judged
    print("ready", flush=True)
    for name, cells in json.load(sys.stdin).items():
        print(json.dumps(result_of(name, cells, isolated=sys.argv[1] == "isolated")), flush=True)
