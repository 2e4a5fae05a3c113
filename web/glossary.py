"""The glossaries of the phases as one, and the places where a page first uses each term.

A text explains a term at its first use and sets it in bold there; the glossary of the phase defines it in one line. So
two mistakes can be found: a bold word without a line, and a line without a definition.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from labkit.catalog import SCRIPTS, glossary_of


@dataclass(frozen=True)
class Entry:
    """A line of a glossary.

    Attributes:
        names: the term, and its synonyms. meaning: its definition, in Markdown. file: the file of the glossary.
        key: its name in addresses.
    """

    names: tuple[str, ...]
    meaning: str
    file: str
    key: str


def read_glossary() -> list[Entry]:
    """Return all terms in alphabetical order. Two phases may define the same word in two ways ("block").

    Raises:
        ValueError: a term without a definition.
    """
    entries: dict[str, Entry] = {}
    for phase in SCRIPTS:
        file, text = glossary_of(phase)
        for item in re.split(r"\n- ", "\n" + text.strip())[1:]:
            said, _, meaning = " ".join(item.split()).partition(":")
            # A second term may be explained within the line: ". **TPOT**, time per output token, is its mean."
            bold = [said, *re.findall(r"\. \*\*(.+?)\*\*, ", meaning)]
            names = [n for b in bold for n in re.split(r", | \(|\)", b.replace("**", "")) if n]
            if not meaning.strip("* "):
                raise ValueError(f"{file}: the glossary has {said!r} without a definition")
            key = re.sub(r"\W+", "-", names[0].lower()).strip("-")
            key += f"-{file[: len('phase1')]}" if key in entries else ""
            entries[key] = Entry(tuple(names), meaning.strip(), file, key)
    return sorted(entries.values(), key=lambda e: e.names[0].lower())


def pattern(name: str) -> re.Pattern[str]:
    """Return a pattern for the forms of a term: "preempted" for "preemption", "quantised" for "quantization", "splits" for "split"."""
    if len(name) < 5 or name.isupper():
        return re.compile(rf"\b{re.escape(name)}s?\b", 0 if name.isupper() else re.IGNORECASE)
    stem = re.escape(re.sub(r"(?<=\w{4})(e|ation|ion|ed)$", "", name)).replace(r"\ ", r"[\s-]+")
    stem = re.sub(r"(?<=i)z$", "[sz]", stem)
    return re.compile(rf"\b{stem}(s|es|d|ed|ing|e|ions?|ations?)?\b", re.IGNORECASE)


class Terms:
    """Finds terms in the text of a section.

    Args:
        entries: of the glossary. ambiguous: words that are a term only where they are explained.
        files: the section's own; the glossaries of their phases go before those of other phases.
    """

    def __init__(self, entries: list[Entry], ambiguous: frozenset[str], files: Collection[str] = ()) -> None:
        self.ambiguous = ambiguous
        pairs = [(name, entry) for entry in entries for name in entry.names]
        # The longer one of two terms that begin at the same place.
        phases = {file.split("/")[0] for file in files}
        pairs.sort(key=lambda pair: (pair[1].file.split("/")[0] not in phases, -len(pair[0])))
        self.pairs = [(name, entry, pattern(name)) for name, entry in pairs]
        self.known: set[str] = set()  # terms that were found, by their first names

    def explained(self, words: str) -> Entry | None:
        """Return the entry of a term in any of its forms, such as "drafts"; None if there is none."""
        return next((entry for _, entry, form in self.pairs if form.fullmatch(words)), None)

    def is_first(self, entry: Entry) -> bool:
        """Tell whether this is the first use of a term, and remember the use."""
        name = entry.names[0].lower()
        return name not in self.known and not self.known.add(name)

    def within(self, text: str) -> list[tuple[int, int, Entry]]:
        """Find the first uses of terms in a text: start, end, entry, from left to right."""
        found: list[tuple[int, int, Entry]] = []
        for name, entry, form in self.pairs:
            if name.lower() in self.ambiguous or entry.names[0].lower() in self.known:
                continue
            for match in form.finditer(text):
                if all(match.end() <= start or match.start() >= end for start, end, _ in found):
                    found.append((*match.span(), entry))
                    self.is_first(entry)
                    break
        return sorted(found, key=lambda use: use[0])
