"""`make student`: the course without the solutions, in a new folder, to be given to a class.

Left out: the solved notebooks, the solutions in the sources of the exercises (so the fourth hint says to ask), and the tests with their
right and wrong answers. What remains can be found by a determined learner: the course's own parts, and the solutions (one
compressed file) that graders compare with and `my_engine` runs.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from exercises.judging.sources import take_solutions_out
from labkit.errors import LabError
from labkit.paths import ROOT
from labkit.terminal import run

LEFT_OUT = "tests/exercises/"


def write_edition(folder: Path) -> int:
    """Copy what git knows of the course; stubs in the place of solutions.

    Returns:
        How many files were written.

    Raises:
        LabError: the folder is there already, or this is no checkout.
    """
    if folder.exists():
        raise LabError(f"{folder} is there already: name a new folder")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        raise LabError("only a checkout of git has a list of the course's files: git clone it")
    solved = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("notebooks/solutions/*.ipynb")}
    names = [name for name in listed.stdout.split("\0") if name and name not in solved]
    kept = [name for name in names if not name.startswith(LEFT_OUT) and (ROOT / name).is_file()]
    for name in kept:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
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
