"""Every term of a glossary is explained where it first stands: there it is set in bold or italics.

A paragraph that explains a term sets it apart. So in the text of a phase, the first paragraph with the term must do so, unless an
earlier phase has the term in its own glossary. The text is that of the chapters; where there are none yet, that of the README below
its first heading (above it are the map and the list of scripts). Headings, tables, code, figures and addresses do not count.
"""

import re
import tomllib

import pytest

from labkit.catalog import SCRIPTS, chapters_of, glossary_of
from labkit.paths import ROOT

PHASES = list(SCRIPTS)
ORDINARY = set(tomllib.loads((ROOT / "web" / "contents.toml").read_text(encoding="utf-8"))["ambiguous"])


def text_and_glossary(phase: str) -> tuple[list[str], list[str]]:
    """The paragraphs of the chapters, or of the README up to the takeaways, and the terms of the glossary."""
    if chapters := chapters_of(phase):
        sections = "\n\n".join(c.read_text(encoding="utf-8") for c in chapters)
        sections = re.sub(r"^\*Level: .*$", "", sections, flags=re.MULTILINE)
    else:
        text = (ROOT / phase / "README.md").read_text(encoding="utf-8").partition("\n## Glossary\n")[0]
        sections = text.split("\n## ", 1)[1].split("\n## Key takeaways\n")[0].partition("\n")[2]
    glossary = glossary_of(phase)[1]
    sections = re.sub(r"```.*?```", "", sections, flags=re.DOTALL)
    sections = re.sub(r"\]\((\.\./)+phase(\d)_[^)]*\)", r" (phase \2) ", sections)  # points to another phase
    sections = re.sub(r"\$\$.+?\$\$|\$\S(?:[^$\n]*\S)?\$(?!\d)", " ", sections, flags=re.DOTALL)
    sections = re.sub(r"`[^`\n]*`|!\[[^]]*\]|\]\([^)]*\)|<[^>]*>", " ", sections)
    plain = [p for p in re.split(r"\n\s*\n|\n(?=[-*] |\d+\. )", sections) if p.strip()]
    plain = [p for p in plain if not p.startswith(("    ", "#", "|"))]
    entries = re.findall(r"^- \*\*(.+?)\*\*:|\. \*\*(.+?)\*\*, ", glossary, flags=re.MULTILINE)
    terms = [term for entry in entries for term in re.split(r", | \(", "".join(entry).replace(")", ""))]
    return plain, terms


def pattern(term: str) -> str:
    """The term in its forms: preempted for preemption, splits for split."""
    stem = term if len(term) < 5 or term.isupper() else re.sub(r"(e|ion|ed)$", "", term)
    return r"\b" + re.escape(stem).replace(r"\ ", r"\s+") + (r"\w*" if len(term) > 4 else r"s?\b")


def sets_apart(paragraph: str, term: str) -> bool:
    """Whether the term stands inside bold or italics; not between two that are."""
    inside = re.findall(r"\*\*(.+?)\*\*|\*(.+?)\*", paragraph, re.DOTALL)
    return any(re.search(pattern(term), "".join(words), re.IGNORECASE) for words in inside)


def first_with(term: str, paragraphs: list[str]) -> str | None:
    return next((p for p in paragraphs if re.search(pattern(term), p, re.IGNORECASE)), None)


@pytest.mark.parametrize("phase", PHASES)
def test_no_earlier_phase_uses_a_term_without_explaining_it(phase):
    """Unless it is an ordinary word as well, or the paragraph points to a later phase."""
    at = PHASES.index(phase)
    for term in text_and_glossary(phase)[1]:
        for earlier in PHASES[:at]:
            paragraphs, explained = text_and_glossary(earlier)
            first = None if term.lower() in ORDINARY else first_with(term, paragraphs)
            if term.lower() in map(str.lower, explained) or (first and sets_apart(first, term)):
                break
            assert first is None or re.search(r"phase \d", first, re.IGNORECASE), (
                f"{earlier}: {term!r} in\n{first}"
            )


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
