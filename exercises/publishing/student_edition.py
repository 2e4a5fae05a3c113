"""`make student`: writes the course without the solutions to a new folder, for a class.

It leaves out the solved notebooks, the solutions in the sources of the exercises (so the fourth hint says to ask), the tests with
right and wrong answers and of the texts, and the page for teachers. A determined learner can still find the course's own parts, and the solutions (one
compressed file) that graders compare with and `my_engine` runs.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from exercises.judging.sources import take_solutions_out
from labkit.errors import LabError
from labkit.paths import ROOT
from labkit.terminal import run

LEFT_OUT = ("tests/exercises/", "tests/docs/", "docs/TEACHING.md")
README = {  # what its README says otherwise
    r"Solved notebooks are in `notebooks/solutions/`\.": "For a solution, ask your teacher.",
    r"\[Teaching with this course\]\([^)]*\) is for classes\. ": "",
    r"\[([^]]*)\]\(docs/TEACHING\.md[^)]*\)": r"\1",
}


def write_edition(folder: Path) -> int:
    """Copy the files that git lists, with stubs in place of solutions.

    Returns:
        The number of written files.

    Raises:
        LabError: the folder exists, or this is no git checkout.
    """
    if folder.exists():
        raise LabError(f"{folder} exists already: name a new folder")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        raise LabError(
            "the list of files comes from git, and this folder is no git checkout: clone the course with git"
        )
    solved = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("notebooks/solutions/*.ipynb")}
    names = [name for name in listed.stdout.split("\0") if name and name not in solved]
    kept = [name for name in names if not name.startswith(LEFT_OUT) and (ROOT / name).is_file()]
    for name in kept:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    text = (folder / "README.md").read_text(encoding="utf-8")
    for pattern, instead in README.items():
        text = re.sub(pattern, instead, text)
    (folder / "README.md").write_text(text, encoding="utf-8")
    take_solutions_out(folder)
    return len(kept)


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
