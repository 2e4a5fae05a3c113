"""`lab grade FOLDER`: run every answer of every submission again, and say what came out."""

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from exercises.classroom.room import Room
from exercises.classroom.submission import Answer, Submission, is_copied, written
from exercises.judging.sources import source_of
from exercises.judging.verdict import Verdict
from exercises.publishing.build_notebooks import build_student, fingerprint
from labkit.errors import LabError
from labkit.foreign import visible

COPIED = "is the solution, copied"


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


def grade(submissions: list[Submission], isolated: bool, most: int) -> Iterator[Graded]:
    """All answers, in the order of the submissions and of the course. So many learners' rooms are open side by side.

    Raises:
        LabError: a room does not open.
    """
    waiting, rooms = iter(submissions), deque[tuple[Submission, Room]]()

    def open_next() -> None:
        for submission in islice(waiting, most - len(rooms)):
            cells = {name: answer.cells for name, answer in submission.answers.items()}
            rooms.append((submission, Room(cells, isolated)))

    try:
        open_next()
        while rooms:
            submission, room = rooms[0]
            if not room.is_ready():
                raise LabError("the process that runs answers does not start: run `lab doctor`")
            results = room.results()
            for name in submission.answers:
                yield _graded(submission, name, next(results, None))
            room.close()
            rooms.popleft()
            open_next()
    finally:
        for _, room in rooms:
            room.close()


def _graded(submission: Submission, name: str, result: dict[str, Any] | None) -> Graded:
    answer = submission.answers[name]
    if result is None:
        says = "This answer, or one before it, ended the process that judged them."
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
        graded.look_at.append(COPIED)
    return graded


def note_alike(graded: list[Graded]) -> None:
    """Note long answers that several learners have written with the same names."""
    alike: defaultdict[Any, list[Graded]] = defaultdict(list)
    for one in graded:
        alike[one.exercise, written(one.exercise, one.answer.cells)].append(one)
    for (_, own), group in alike.items():
        for one in group if own and len(group) > 1 else ():
            one.look_at.append("the same answer as " + ", ".join(o.learner for o in group if o is not one))
