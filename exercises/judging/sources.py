"""The sources of the exercises: where they are, what they are called, and the solution that stands in them."""

import ast
import difflib
import json
import linecache
import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from labkit.errors import LabError
from labkit.paths import ROOT

SOURCES = ROOT / "exercises"
BEGIN = "# BEGIN SOLUTION"
SOLUTION = re.compile(rf"^( *){BEGIN}\n(.*?)^ *# END SOLUTION$", re.MULTILINE | re.DOTALL)
STUB = re.compile(r"^( *)# STUB: ?(.*)\n", re.MULTILINE)
PACKED = SOURCES / "solutions.bin"
CHECK = '# %% tags=["check"]'
Slip = Mapping[str, str]
_numbers = count()


def all_sources() -> list[Path]:
    """The sources, in the order of the course: by phase, then by the number in the heading."""
    files = SOURCES.glob("phase*/*.py")
    found = [p for p in files if p.read_text(encoding="utf-8").lstrip().startswith("# %%")]
    return sorted(found, key=lambda p: (p.parent.name, _number(p), p.stem))


def _number(path: Path) -> tuple[int, ...]:
    found = re.match(r"[\d.]+", title_of(path))
    if found:
        return tuple(int(n) for n in found[0].split(".") if n)
    return (99,)  # a debugging lab has no number, and comes last in its phase


def name_of(source: Path) -> str:
    """exercises/phase1/e1_pairs.py -> p1e1_pairs"""
    return f"p{source.parent.name.removeprefix('phase')}{source.stem}"


def all_names() -> list[str]:
    return [name_of(source) for source in all_sources()]


def the_one(word: str, names: Collection[str], what: str, otherwise: str) -> str:
    """The name that a word means: the whole name, the number (1.1 or p1e1), or a beginning.

    Args:
        what: of what it is the name. otherwise: what to say where no name is like it.

    Raises:
        LabError: there is none, or several.
    """
    number = re.sub(r"^(\d)\.(\d+[a-z]?)$", r"p\1e\2", word)
    found = [word] * (word in names) or [name for name in names if name.startswith(f"{number}_")]
    found = found or [name for name in names if word and name.startswith(number)]
    if len(found) > 1:
        raise LabError(f"{word!r} is the beginning of {len(found)} {what}s: {', '.join(found)}")
    if not found:
        near = difflib.get_close_matches(word, names, 1, 0.6)
        raise LabError(f"no {what} is called {word!r}{f': did you mean {near[0]}?' if near else otherwise}")
    return found[0]


def source_of(name: str) -> Path:
    """p1e1_pairs -> exercises/phase1/e1_pairs.py

    Raises:
        ValueError: there is none.
    """
    found = re.fullmatch(r"p(\d)(\w+)", name)
    path = SOURCES / f"phase{found[1]}" / f"{found[2]}.py" if found else None
    if path is None or not path.is_file():
        raise ValueError(f"no exercise is called {name!r}")
    return path


def title_of(source: Path) -> str:
    """The first heading of a source."""
    found = re.search(r"^# # (.+)$", source.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1].strip() if found else name_of(source)


class Cut(NamedTuple):
    """A cell or a source without its solution, and the same with it but without the markers."""

    student: str
    solution: str


def cut(text: str) -> Cut:
    def stub(block: re.Match[str]) -> str:
        margin, lines = block.groups()
        given = "\n".join(indent + line for indent, line in STUB.findall(lines))
        return given or margin + ('raise NotImplementedError("your turn")' if margin else "# your turn")

    solution = SOLUTION.sub(lambda block: STUB.sub("", block[2]).rstrip("\n"), text)
    return Cut(SOLUTION.sub(stub, text), solution)


def whole_source(name: str) -> str:
    """The source with its solution, for the graders; from the packed ones where the sources hold stubs."""
    text = source_of(name).read_text(encoding="utf-8")
    return json.loads(zlib.decompress(PACKED.read_bytes()))[name] if BEGIN not in text else text


def take_solutions_out(course: Path) -> None:
    """Stubs in the sources of a copy of the course. Its graders get the solutions as one packed file."""
    for source in all_sources():
        text = cut(source.read_text(encoding="utf-8")).student
        (course / source.relative_to(ROOT)).write_text(text, encoding="utf-8")
    texts = {name: whole_source(name) for name in all_names()}
    target = course / PACKED.relative_to(ROOT)
    target.write_bytes(zlib.compress(json.dumps(texts).encode()))


def execute(text: str, filename: str, names: dict[str, Any]) -> None:
    """Run a text. Tracebacks, `inspect` and Triton find its lines as if it stood in a file."""
    linecache.cache[filename] = len(text), None, text.splitlines(keepends=True), filename
    exec(compile(text, filename, "exec"), names)


def solution_of(name: str) -> str:
    """The cells of an exercise that hold its solution, without the markers."""
    cells = re.split(r"^# %%.*$", source_of(name).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return "\n\n".join(cut(cell).solution.strip() for cell in cells if BEGIN in cell)


def solved(
    name: str, asks: Sequence[str], slip: Mapping[str, Any] | None = None, as_handed_out: bool = False
) -> dict[str, Any]:
    """The answers of a solution by their names. Their lines are found by tracebacks, and by Triton.

    Of the source up to the check, imports, definitions and answers are run, and nothing else.

    Args:
        slip: {what stands in the solution: what the learner wrote there}, or, in the banks of the tests only, {name of an answer:
            another answer}.
        as_handed_out: the answers as a learner gets them: stubs, or the planted bug of a debugging lab.

    Raises:
        ValueError: what is to be replaced does not stand in the source.
    """
    slip = slip or {}
    both = cut(whole_source(name).partition(CHECK)[0])
    source = both.student if as_handed_out else both.solution
    for old, new in slip.items():
        if old not in asks:
            if old not in source:
                raise ValueError(f"{old!r} does not stand in {name}")
            source = source.replace(old, new)
    lines = source.splitlines(keepends=True)
    for node in ast.parse(source).body:
        answers = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in asks
        if not answers and not isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef):
            lines[node.lineno - 1 : node.end_lineno] = ["\n"] * (node.end_lineno - node.lineno + 1)
    names: dict[str, Any] = {"__name__": f"answers_{name}"}
    execute("".join(lines), f"<{name}, changed {next(_numbers)}>", names)
    return {asked: slip.get(asked, names[asked]) for asked in asks}


def handed_out(name: str, asked: str, slip: Slip | None = None) -> Any:
    """One answer as a learner gets it."""
    return solved(name, (asked,), slip, as_handed_out=True)[asked]
