"""`make student`: writes the course without the solutions to a new folder, for a class.

It leaves out the solved notebooks, the solutions in the sources of the exercises (so the fourth hint says to ask), the tests with
right and wrong answers and of the texts, and the page for teachers. The notebooks of the exercises are built anew from their sources:
those of the teacher may hold answers. A determined learner can still find the course's own parts, and the solutions (one
compressed file) that graders compare with and `my_engine` runs.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from exercises.judging.sources import all_names, source_of, take_solutions_out
from exercises.publishing import build_notebooks
from labkit.errors import LabError
from labkit.paths import ROOT, short
from labkit.terminal import run

LEFT_OUT = re.compile(
    r"tests/(exercises|docs)/|docs/TEACHING\.md|notebooks/exercises/|notebooks/solutions/.*\.ipynb"
)
TEXTS = {  # what they say otherwise
    "README.md": {
        r"Solved notebooks are in `notebooks/solutions/`\.": "For a solution, ask your teacher.",
        r"\[Teaching with this course\]\([^)]*\) is for teachers\. ": "",
        r"\[([^]]*)\]\(docs/TEACHING\.md[^)]*\)": r"\1",
    },
    "notebooks/README.md": {
        r"`solutions/` holds the same notebooks, solved, and `my_engine/`, the": "`solutions/my_engine/` is the"
    },
}


def write_edition(folder: Path) -> int:
    """Copy the files that git lists, with stubs in place of solutions.

    Returns:
        The number of written files.

    Raises:
        LabError: the folder exists, this is no git checkout, or a teacher has worked in the notebook of a phase.
    """
    if folder.exists():
        raise LabError(f"{folder} exists already: name a new folder")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        raise LabError(
            "the list of files comes from git, and this folder is no git checkout: clone the course with git"
        )
    for path in build_notebooks.companions():
        if build_notebooks.has_been_worked_in(path):
            raise LabError(
                f"{short(path)} holds work of yours: move it away, put the course's own there, then again"
            )
    kept = [
        name for name in listed.stdout.split("\0") if (ROOT / name).is_file() and not LEFT_OUT.match(name)
    ]
    for name in kept:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    for name, changes in TEXTS.items():
        text = (folder / name).read_text(encoding="utf-8")
        for pattern, instead in changes.items():
            text = re.sub(pattern, instead, text)
        (folder / name).write_text(text, encoding="utf-8")
    notebooks = folder / "notebooks" / "exercises"
    notebooks.mkdir()
    for name in all_names():
        text = build_notebooks.text_of(build_notebooks.build_student(source_of(name)))
        (notebooks / f"{name}.ipynb").write_text(text, encoding="utf-8")
    take_solutions_out(folder)
    return len(kept) + len(all_names())


def main(argv: Sequence[str] | None = None) -> int | None:
    words = sys.argv[1:] if argv is None else argv

    def work() -> int:
        if len(words) != 1:
            raise LabError("name the folder: make student FOLDER=../course-for-my-class")
        print(f"{write_edition(Path(words[0]))} files, none of them a solution: {words[0]}")
        return 0

    return run(work)


if __name__ == "__main__":
    raise SystemExit(main())
