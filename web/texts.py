"""Takes sections out of Markdown files by their headings, and turns their links into links of the page.

The READMEs stay the only text. What is written here to the build folder is what Sphinx reads, and nobody edits it.
"""

import os
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from labkit.paths import ROOT

WEB = Path(__file__).resolve().parent
OUTSIDE = ("http://", "https://", "mailto:")


@dataclass(frozen=True)
class Heading:
    """A heading of a Markdown file, and the lines that belong to it.

    Attributes:
        level: how many "#". line: where it stands. end: the line behind the last that stands below it, of its
            subsections too.
    """

    level: int
    title: str
    line: int
    end: int


@dataclass(frozen=True)
class Section:
    """A section of the page: a line of the table in contents.toml."""

    number: int
    name: str
    title: str
    texts: tuple[tuple[str, str], ...]  # file, heading


@dataclass(frozen=True)
class Contents:
    """contents.toml, read."""

    sections: tuple[Section, ...]
    ambiguous: frozenset[str]
    repository: str
    taken: dict[tuple[str, str], Section] = field(default_factory=dict)  # (file, heading) -> where it stands


def read_contents(path: Path = WEB / "contents.toml") -> Contents:
    """Read the table.

    Raises:
        ValueError: a file or a heading that is not there, or one that two sections want.
    """
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    sections, taken = [], {}
    for number, entry in enumerate(table["section"], 1):
        texts = tuple((file, heading) for file, _, heading in (t.partition(": ") for t in entry["texts"]))
        sections.append(Section(number, entry["name"], entry["title"], texts))
        for file, heading in texts:
            if (file, heading) in taken:
                raise ValueError(f"two sections of {path.name} want {heading!r} of {file}")
            if heading not in (h.title for h in headings_of(file)):
                raise ValueError(f"{path.name}: {file} has no heading {heading!r}")
            taken[file, heading] = sections[-1]
    return Contents(tuple(sections), frozenset(table["ambiguous"]), table["repository"], taken)


def headings_of(file: str) -> list[Heading]:
    """The headings of a Markdown file, those in code left out."""
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    found, in_code = [], False
    for number, line in enumerate(lines):
        in_code ^= line.lstrip().startswith("```")
        if not in_code and (match := re.match(r"(#+) (.+)", line)):
            found.append((len(match[1]), match[2].strip(), number))
    ends = [
        next((line for level, _, line in found[i + 1 :] if level <= found[i][0]), len(lines))
        for i in range(len(found))
    ]
    return [Heading(*heading, end) for heading, end in zip(found, ends, strict=True)]


def text_of(contents: Contents, section: Section) -> list[tuple[str, str]]:
    """The texts of a section, each with its file. Of several each keeps its heading, without the README's number."""
    if len(section.texts) == 1:
        ((file, title),) = section.texts
        return [(file, take(contents, file, title))]
    return [
        (file, f"## {re.sub(r'^[0-9]+[.] ', '', title)}\n\n{take(contents, file, title, below=2)}")
        for file, title in section.texts
    ]


def take(contents: Contents, file: str, title: str, below: int = 1) -> str:
    """The text below a heading, without what other sections take. It will stand below a heading of level `below`."""
    headings = headings_of(file)
    heading = next(h for h in headings if h.title == title)
    lines: list[str | None] = list((ROOT / file).read_text(encoding="utf-8").splitlines())
    for other in headings:
        inside = heading.line < other.line < heading.end
        if inside and (file, other.title) in contents.taken:
            lines[other.line : other.end] = [None] * (other.end - other.line)
        elif inside:
            lines[other.line] = "#" * (other.level - heading.level + below) + " " + other.title
    return "\n".join(line for line in lines[heading.line + 1 : heading.end] if line is not None).strip("\n")


class Linker:
    """Rewrites the links of a text, and collects the files that the page has to bring along.

    Args:
        contents: says which heading is on which page.
    """

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self.files: dict[str, None] = {}  # to be shown as pages, in the order in which they were met
        self.copies: dict[str, str] = {}  # pictures and notebooks, and where they are put

    def rewrite(self, text: str, file: str) -> str:
        """Links and section numbers of `file`'s text, as they have to be on the page. Code stays as it is."""
        parts = re.split(r"(```.*?```|`[^`\n]+(?:\n[^`\n]+)?`)", text, flags=re.DOTALL)
        return "".join(part if i % 2 else self._prose(part, file) for i, part in enumerate(parts))

    def _prose(self, text: str, file: str) -> str:
        linked = r"\[[Pp]hase\s(\d)\]\([^)]*README\.md\), section\s(\d+)"
        text = re.sub(linked, lambda m: self._number(f"phase {m[1]}, section {m[2]}", m[1], m[2]), text)
        text = re.sub(r"\]\(([^)\s]+)\)", lambda m: f"]({self.target(m[1], file)})", text)
        text = re.sub(r"\b[Pp]hase\s(\d), section\s(\d+)", lambda m: self._number(m[0], m[1], m[2]), text)
        if phase := re.match(
            r"phase(\d)", file
        ):  # a section of a paper stands behind a bracket: "(2023), section 4"
            own = r"(?<!\[)(?<!\), )\b[Ss]ection\s(\d+)(?!\.?\d)"
            text = re.sub(own, lambda m: self._number(m[0], phase[1], m[1]), text)
        return re.sub(r"<!-- piece: ([\w-]+) -->", r"\n```{piece} \1\n```\n", text)

    def _number(self, said: str, phase: str, number: str) -> str:
        """ "phase 2, section 5" as the page counts, with a link."""
        file = next(ROOT.glob(f"phase{phase}_*/README.md")).relative_to(ROOT).as_posix()
        heading = next((h.title for h in headings_of(file) if h.title.startswith(f"{number}. ")), "")
        if section := self.contents.taken.get((file, heading)):
            return f"[section {section.number}](/{section.name}.md)"
        return f"[{said}]({self._file(file)})"

    def target(self, target: str, file: str) -> str:
        """Where a link of `file` leads on the page: a section, a file that comes along, or the code host."""
        if target.startswith((*OUTSIDE, "#", "/")):
            return target
        path = os.path.normpath(os.path.join(os.path.dirname(file), target.partition("#")[0]))
        if Path(path).suffix in (".png", ".ipynb"):
            self.copies[path] = "copies/" + re.sub(r"\.png$", ".webp", path)
            return f"/{self.copies[path]}"
        if path.endswith("README.md") and (first := self._first_section(path)):
            return f"/{first.name}.md"
        return self._file(path)

    def _first_section(self, file: str) -> Section | None:
        return next((s for (taken, _), s in self.contents.taken.items() if taken == file), None)

    def _file(self, path: str) -> str:
        if self.contents.repository:
            return self.contents.repository + path
        self.files[path] = None
        return f"/{page_of_file(path)}.md"


def page_of_file(path: str) -> str:
    """The name of the page that shows a file, or lists a folder."""
    return f"files/{path}" + ("/index" if (ROOT / path).is_dir() else "")
