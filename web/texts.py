"""Takes sections out of Markdown files by their headings, and turns their links into links of the page.

The chapters of the phases and their READMEs are the only source of text. The build folder holds what Sphinx reads; it is
generated and never edited.
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
    texts: tuple[tuple[str, str], ...]  # file, heading; of a whole chapter its title


@dataclass(frozen=True)
class Contents:
    """contents.toml, read."""

    sections: tuple[Section, ...]
    ambiguous: frozenset[str]
    taken: dict[tuple[str, str], Section] = field(default_factory=dict)  # (file, heading) -> where it stands


def read_contents(path: Path = WEB / "contents.toml") -> Contents:
    """Read the table. "FILE: HEADING" is a part of a file, "FILE" the whole chapter.

    Raises:
        ValueError: a file or a heading that is not there, or one that two sections want.
    """
    table = tomllib.loads(path.read_text(encoding="utf-8"))

    def read(texts: list[str]) -> tuple[tuple[str, str], ...]:
        found = []
        for file, _, heading in (t.partition(": ") for t in texts):
            titles = [h.title for h in headings_of(file)]
            if heading and heading not in titles:
                raise ValueError(f"{path.name}: {file} has no heading {heading!r}")
            found.append((file, heading or titles[0]))
        return tuple(found)

    sections, taken = [], {}
    for number, entry in enumerate(table["section"], 1):
        sections.append(Section(number, entry["name"], entry["title"], read(entry["texts"])))
        for file, heading in sections[-1].texts:
            if (file, heading) in taken:
                raise ValueError(f"two sections of {path.name} want {heading!r} of {file}")
            taken[file, heading] = sections[-1]
    return Contents(tuple(sections), frozenset(table["ambiguous"]), taken)


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
    """The texts of a section, each with its file. Of several each keeps its heading."""
    if len(section.texts) == 1:
        ((file, title),) = section.texts
        return [(file, take(contents, file, title))]
    return [(file, f"## {title}\n\n{take(contents, file, title, below=2)}") for file, title in section.texts]


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


# What the Linker looks at, each part of a text once. So nothing that was rewritten is rewritten again.
_PARTS = re.compile(
    r"""
      (?P<code>   ```.*?``` | `[^`\n]+(?:\n[^`\n]+)?` )
    | <!--\ piece:\ (?P<piece>[\w-]+)\ -->
    | (?P<words>!?\[(?:[^][`]|`[^`]*`)*\])\((?P<target>[^)\s]+)\)
    """,
    re.DOTALL | re.VERBOSE,
)


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
        """Links and pieces of `file`'s text, as they have to be on the page. Code stays as it is."""
        return _PARTS.sub(lambda part: self._rewritten(part, file), text)

    def _rewritten(self, part: re.Match[str], file: str) -> str:
        if part["piece"]:
            return f"\n```{{piece}} {part['piece']}\n```\n"
        if part["target"]:
            return f"{part['words']}({self.target(part['target'], file)})"
        return part[0]

    def target(self, target: str, file: str) -> str:
        """Where a link of `file` leads on the page: a section, or a file that comes along."""
        if target.startswith((*OUTSIDE, "/")):
            return target
        name, _, anchor = target.partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(file), name)) if name else file
        if Path(path).suffix in (".png", ".svg", ".ipynb"):
            self.copies[path] = "copies/" + re.sub(r"\.png$", ".webp", path)
            return f"/{self.copies[path]}"
        if path.endswith("/chapters/glossary.md"):
            return "/glossary.md"
        if path.endswith(".md") and (place := self._section(path, anchor)):
            return place
        return self._file(path) + (f"#{anchor}" if anchor else "")

    def _section(self, file: str, anchor: str) -> str | None:
        """The place on the page of the heading that an anchor names; without an anchor, of the file's first heading there."""
        headings = headings_of(file)
        named = next((h for h in headings if anchor and slug(h.title) == anchor), None)
        if anchor and named is None:
            return None
        around = [h for h in reversed(headings) if named and h.line <= named.line < h.end]
        for heading in around or headings:  # from the innermost outwards
            if section := self.contents.taken.get((file, heading.title)):
                if named not in (None, heading):
                    return f"/{section.name}.md#{anchor}"
                within = f"#{slug(heading.title)}" if (file, heading.title) != section.texts[0] else ""
                return f"/{section.name}.md{within}"
        return None

    def _file(self, path: str) -> str:
        self.files[path] = None
        return f"/{page_of_file(path)}.md"


def slug(title: str) -> str:
    """A heading as it stands in addresses, by the rule of code hosts: "5. Where?" is "5-where"."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def page_of_file(path: str) -> str:
    """The name of the page that shows a file, or lists a folder."""
    return f"files/{path}" + ("/index" if (ROOT / path).is_dir() else "")
