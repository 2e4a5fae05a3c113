"""`lab grade FOLDER`: run every answer of every submission again, and say what came out."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import Any

from exercises.classroom.copies import copied, shapes_of
from exercises.classroom.submission import Answer, Submission, graders_fingerprint
from exercises.judging.sources import all_names, all_sources, cut
from exercises.judging.verdict import Verdict
from labkit.paths import ROOT

PACKAGES = ("exercises", "labkit", *(p.name for p in sorted(ROOT.glob("phase?_*")) if p.is_dir()))
LONGEST = 200.0  # seconds for one answer: more than any exercise has, and a new Python where there is no fork


@dataclass
class Graded:
    """One answer: what came out now, and what the teacher should look at."""

    learner: str
    exercise: str
    answer: Answer
    verdict: Verdict
    look_at: list[str] = field(default_factory=list)
    parts: dict[str, str] = field(default_factory=dict)  # functions and classes, to compare learners by

    @property
    def solved(self) -> bool:
        return self.verdict.state == "correct"


def grade(
    submissions: list[Submission],
    told: Callable[[list[Graded]], None] = lambda graded: None,
    cores: int = os.cpu_count() or 1,
) -> list[Graded]:
    """All answers, in the order of the submissions and of the course. `told` gets what is there after each.

    As many answers run side by side as there are cores.
    """
    jobs = [(s, name) for s in submissions for name in all_names() if name in s.answers]
    with clean_copies(min(len(jobs), cores)) as rooms:

        def one(job: tuple[Submission, str]) -> Graded:
            submission, name = job
            answer = submission.answers[name]
            room = rooms.pop()
            verdict, touched = room.judge(name, answer.cells)
            rooms.append(room)
            graded = Graded(submission.learner, name, answer, verdict)
            graded.look_at = _suspicions(graded, touched)
            graded.parts = shapes_of(name, answer.cells)
            for part in copied(name, graded.parts):
                shown = " (hint 4 showed it)" if (answer.hints or 0) >= 4 else ""
                graded.look_at.append(f"`{part}` is the solution{shown}")
                del graded.parts[part]
            return graded

        with ThreadPoolExecutor(max(1, len(rooms))) as workers:
            found = []
            for graded in workers.map(one, jobs):
                found.append(graded)
                told(found)
    _compare_learners(found)
    return found


# ------------------------------------------------------------------ what to look at


def _suspicions(graded: Graded, touched: list[str]) -> list[str]:
    verdict, found = graded.verdict, []
    if verdict.diagnosis == "borrowed":
        found.append(f"uses {verdict.about}")
    if verdict.diagnosis == "reads-a-solution":
        found.append(f"reads the solution: {verdict.about}")
    if verdict.diagnosis in ("changes-grader", "changes-python"):
        found.append(f"changes the grader: {verdict.about}")
    if verdict.diagnosis == "writes-a-verdict":
        found.append("writes its own verdict")
    if touched:
        found.append(f"writes in the course's files: {', '.join(touched[:3])}")
    if graded.answer.solved and not graded.solved:
        found.append(f"noted as solved, but graded again: {verdict.diagnosis}")
    return found


def _compare_learners(graded: list[Graded]) -> None:
    """Answers of two learners that are the same but for names."""
    alike: dict[tuple[str, str, str], list[Graded]] = defaultdict(list)
    for one in graded:
        for part, shape in one.parts.items():
            alike[one.exercise, part, shape].append(one)
    for (_, part, _), group in alike.items():
        for one in group:
            others = [other.learner for other in group if other is not one]
            if others:
                one.look_at.append(f"`{part}` is the same as that of {', '.join(others)}")


def strange_graders(submission: Submission) -> bool:
    """Whether the learner's graders are not these: somebody changed one, or it is another version of the course."""
    return submission.graders not in ("", graders_fingerprint())


# ------------------------------------------------------------------ clean copies


@contextmanager
def clean_copies(number: int) -> Iterator[list["Room"]]:
    """Rooms to judge in, each in a copy of the course without the solutions."""
    with tempfile.TemporaryDirectory(prefix="lab-grade-") as folder:
        rooms = [Room(Path(folder) / str(i)) for i in range(number)]
        try:
            yield list(rooms)
        finally:
            for room in rooms:
                room.close()


class Room:
    """A copy of the course, and the process that judges in it. If an answer ends or changes either, it is made anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None

    def judge(self, name: str, cells: list[str]) -> tuple[Verdict, list[str]]:
        """The verdict, and the files of the course that the answer changed."""
        if self.process is None:
            self._open()
        verdict = self._ask(name, cells)
        if verdict is None:
            verdict = Verdict(
                "not yet", "ends-the-grading", "The answer ended or stopped the process that judged it."
            )
            self.close()
        state = self._state()
        touched = sorted(path for path, was in self.before.items() if state.get(path) != was)
        if state != self.before:  # a new file is no offence, but the next answer shall not find it
            self.close()
        return verdict, touched

    def _ask(self, name: str, cells: list[str]) -> Verdict | None:
        """The verdict of the process; None if it ended, or was stopped for ever."""
        assert self.process and self.process.stdin and self.process.stdout
        job = secrets.token_hex(8)  # a line without it is an answer's own work, and is passed over
        too_late = Timer(LONGEST, self.process.kill)
        too_late.start()
        try:
            question = {"job": job, "exercise": name, "cells": cells}
            print(json.dumps(question), file=self.process.stdin, flush=True)
            for line in self.process.stdout:
                its_job, _, verdict = line.partition(" ")
                if its_job == job:
                    return Verdict(**json.loads(verdict))
        except OSError:  # nobody reads the question
            pass
        finally:
            too_late.cancel()
        return None

    def _open(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for package in PACKAGES:
            # What another process is writing has another name until it is whole, and may be gone a moment later.
            ignored = shutil.ignore_patterns("*.png", "*.tmp.*", "*.pyc.*")
            shutil.copytree(ROOT / package, self.folder / package, ignore=ignored)
        for source in all_sources():
            stub = cut(source.read_text(encoding="utf-8")).student
            (self.folder / source.relative_to(ROOT)).write_text(stub, encoding="utf-8")
        self.before = self._state()
        settings: dict[str, Any] = {"INFERENCE_LAB_OUTPUTS": str(self.folder / "outputs")}
        settings |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(self.folder), "CUDA_VISIBLE_DEVICES": ""}
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from exercises.classroom.room import main; main()"],
            cwd=self.folder,
            env=os.environ | settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # an answer that ends its whole group ends this room
        )

    def _state(self) -> dict[str, tuple[int, int]]:
        files = [path for path in self.folder.rglob("*") if path.suffix in (".py", ".txt", ".json")]
        return {
            path.relative_to(self.folder).as_posix(): (path.stat().st_mtime_ns, path.stat().st_size)
            for path in files
            if "outputs" not in path.parts
        }

    def close(self) -> None:
        if self.process:
            self.process.kill()
            self.process.communicate()
            self.process = None
