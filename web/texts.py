"""Joins chapters into sections, and turns their links into links of the page.

The chapters of the phases are the only source of text. The build folder holds what Sphinx reads; it is
generated and never edited.
"""

import posixpath  # the paths of links have slashes, on Windows as well
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from mdit_py_plugins.anchors.index import slugify  # MyST makes the addresses of headings with it

from labkit.paths import ROOT

WEB = Path(__file__).resolve().parent
OUTSIDE = ("http://", "https://", "mailto:")


@dataclass(frozen=True)
class Section:
    """A section of the page: a line of the table in contents.toml. texts: the files of its chapters."""

    number: int
    name: str
    title: str
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Contents:
    """The content of contents.toml. pieces: the title and the task of each. taken: the section of each chapter."""

    sections: tuple[Section, ...]
    ambiguous: frozenset[str]
    pieces: dict[str, tuple[str, str]]
    taken: dict[str, Section] = field(default_factory=dict)


def read_contents(path: Path = WEB / "contents.toml") -> Contents:
    """Read the table.

    Raises:
        ValueError: a chapter does not exist, or is in two sections.
    """
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    rows = enumerate(table["section"], 1)
    contents = Contents(
        tuple(Section(number, row["name"], row["title"], tuple(row["texts"])) for number, row in rows),
        frozenset(table["ambiguous"]),
        {name: (piece["title"], piece["task"]) for name, piece in table.get("piece", {}).items()},
    )
    for section in contents.sections:
        for file in section.texts:
            if not (ROOT / file).is_file():
                raise ValueError(f"{path.name}: there is no {file}")
            if file in contents.taken:
                raise ValueError(f"two sections of {path.name} want {file}")
            contents.taken[file] = section
    return contents


def chapter(file: str, below: int = 1) -> tuple[str, str]:
    """Return the title of a chapter, and the text below it, with its headings moved below a heading of level `below`."""
    title, *lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    in_code = False
    for number, line in enumerate(lines):
        in_code ^= line.lstrip().startswith("```")
        if not in_code and line.startswith("##"):
            lines[number] = "#" * (below - 1) + line
    return title.removeprefix("# "), "\n".join(lines).strip("\n")


def text_of(section: Section) -> list[tuple[str, str]]:
    """Return the texts of a section, each with its file. If there are several, each keeps its title."""
    if len(section.texts) == 1:
        return [(file, chapter(file)[1]) for file in section.texts]
    return [(file, "## {}\n\n{}".format(*chapter(file, below=2))) for file in section.texts]


# The parts of a text that the Linker looks at, each once, so that no rewritten part is rewritten again.
_PARTS = re.compile(
    r"""
      (?P<code>   ```.*?``` | `[^`\n]+(?:\n[^`\n]+)?` )
    | <!--\ piece:\ (?P<piece>[\w-]+)\ -->
    | (?P<words>!?\[(?:[^][`]|`[^`]*`)*\])\((?P<target>[^)\s]+)\)
    """,
    re.DOTALL | re.VERBOSE,
)


class Linker:
    """Rewrites the links of a text, and collects the files that the page has to contain.

    Args:
        contents: says which chapter is on which page.
    """

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self.files: dict[str, None] = {}  # shown as pages, in the order of the links
        self.copies: dict[str, str] = {}  # pictures and notebooks, and the names of their copies

    def rewrite(self, text: str, file: str) -> str:
        """Return the text of `file` with links and pieces in the form of the page. Code is unchanged."""
        return _PARTS.sub(lambda part: self._rewritten(part, file), text)

    def _rewritten(self, part: re.Match[str], file: str) -> str:
        if part["piece"]:
            return f"\n```{{piece}} {part['piece']}\n```\n"
        if part["target"]:
            return f"{part['words']}({self.target(part['target'], file)})"
        return part[0]

    def target(self, target: str, file: str) -> str:
        """Return the target that a link of `file` has on the page: a section, or a copy of a file."""
        if target.startswith((*OUTSIDE, "/")):
            return target
        name, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(file), name)) if name else file
        if Path(path).suffix in (".png", ".svg", ".ipynb"):
            self.copies[path] = "copies/" + re.sub(r"\.png$", ".webp", path)
            return f"/{self.copies[path]}"
        if path.endswith("/chapters/glossary.md"):
            return "/glossary.md"
        if (section := self.contents.taken.get(path)) is None:
            self.files[path] = None
        elif not anchor and path != section.texts[0]:
            anchor = slugify(chapter(path)[0])
        return f"/{section.name if section else page_of_file(path)}.md" + (f"#{anchor}" if anchor else "")


def page_of_file(path: str) -> str:
    """Return the name of the page that shows a file or lists a folder."""
    return f"files/{path}" + ("/index" if (ROOT / path).is_dir() else "")
