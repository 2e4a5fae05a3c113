"""`lab grade FOLDER`: run every answer of every submission again, and say what came out."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from exercises.classroom.room import Room
from exercises.classroom.submission import Answer, Submission, is_copied
from exercises.judging.sources import source_of
from exercises.judging.verdict import Verdict
from exercises.publishing.build_notebooks import build_student, fingerprint
from labkit.foreign import visible


@dataclass
class Graded:
    """One answer: what came out now, and what the teacher should look at."""

    learner: str
    exercise: str
    answer: Answer
    verdict: Verdict
    look_at: list[str] = field(default_factory=list)

    @property
    def solved(self) -> bool:
        return self.verdict.state == "correct"


def grade(
    submissions: list[Submission],
    rooms: list[Room],
    told: Callable[[list[Graded]], None] = lambda so_far: None,
) -> list[Graded]:
    """All answers, in the order of the submissions and of the course. `told` is called after each, with all so far.

    As many answers run side by side as there are rooms. The rooms are closed in the end, however it ends.
    """
    jobs = [(s, name) for s in submissions for name in s.answers]
    free, lock = list(rooms), threading.Lock()

    def one(job: tuple[Submission, str]) -> Graded:
        submission, name = job
        with lock:
            room = free.pop()
        try:
            result = room.ask(name, submission.answers[name].cells)
        finally:
            free.append(room)
        return _graded(submission, name, result)

    workers = ThreadPoolExecutor(max(1, len(rooms)))
    found: list[Graded] = []
    try:
        for graded in workers.map(one, jobs):
            found.append(graded)
            told(found)
    finally:
        workers.shutdown(wait=False, cancel_futures=True)
        for room in rooms:
            room.close(for_good=True)
    return found


def _graded(submission: Submission, name: str, result: dict[str, Any] | None) -> Graded:
    answer = submission.answers[name]
    if result is None:
        says = "The answer ended or stopped the process that judged it."
        return Graded(submission.learner, name, answer, Verdict("not yet", "ends-the-grading", says))
    verdict = Verdict(**{field: visible(text, 2000) for field, text in result["verdict"].items()})
    graded = Graded(submission.learner, name, answer, verdict)
    if result["forged"]:
        graded.look_at.append("claims to be correct, and its results are not")
    if answer.solved and not graded.solved:
        graded.look_at.append(f"noted as solved, but graded again: {verdict.diagnosis}")
    if answer.edition and not graded.solved and answer.edition != fingerprint(build_student(source_of(name))):
        graded.look_at.append("another edition of this exercise")
    if is_copied(name, answer.cells):
        graded.look_at.append("is the solution, copied")
    return graded
