"""Every term of a glossary is explained where it first stands: there it is set in bold or italics.

A paragraph that explains a term sets it apart. So in the chapters of a phase, the first paragraph with the term must do so, unless
an earlier phase has the term in its own glossary. Headings, tables, code, figures and addresses do not count.
"""

import re

import pytest

from labkit.catalog import SCRIPTS, chapters_of, glossary_of
from web.glossary import pattern, read_glossary

PHASES = list(SCRIPTS)


def text_and_glossary(phase: str) -> tuple[list[str], list[str]]:
    """The paragraphs of the chapters, and the terms of the glossary."""
    sections = "\n\n".join(c.read_text(encoding="utf-8") for c in chapters_of(phase))
    sections = re.sub(r"```.*?```|^\*Level: .*?$", "", sections, flags=re.DOTALL | re.MULTILINE)
    sections = re.sub(r"\$\$.+?\$\$|\$\S(?:[^$\n]*\S)?\$(?!\d)", " ", sections, flags=re.DOTALL)
    sections = re.sub(r"`[^`\n]*`|!\[[^]]*\]|\]\([^)]*\)|<[^>]*>", " ", sections)
    plain = [p for p in re.split(r"\n\s*\n|\n(?=[-*] |\d+\. )", sections) if p.strip()]
    plain = [p for p in plain if not p.startswith(("    ", "#", "|"))]
    file = glossary_of(phase)[0]
    return plain, [name for entry in read_glossary() if entry.file == file for name in entry.names]


def sets_apart(paragraph: str, term: str) -> bool:
    """Whether the term stands inside bold or italics; not between two that are."""
    inside = re.findall(r"\*\*(.+?)\*\*|\*(.+?)\*", paragraph, re.DOTALL)
    return any(pattern(term).search("".join(words)) for words in inside)


def first_with(term: str, paragraphs: list[str]) -> str | None:
    return next((p for p in paragraphs if pattern(term).search(p)), None)


@pytest.mark.parametrize("phase", PHASES)
def test_each_term_of_a_glossary_is_explained_where_it_first_stands(phase):
    known = {t.lower() for earlier in PHASES[: PHASES.index(phase)] for t in text_and_glossary(earlier)[1]}
    paragraphs, terms = text_and_glossary(phase)
    assert terms and paragraphs
    for term in terms:
        if term.lower() in known:
            continue
        first = first_with(term, paragraphs)
        assert first, f"{phase}: {term!r} is in the glossary and nowhere in the text"
        assert sets_apart(first, term), (
            f"{phase}: {term!r} first stands in a paragraph that does not explain it:\n{first}"
        )
