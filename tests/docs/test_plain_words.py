"""Chapters, READMEs and exercises name their actors and use the field's terms: pronouns for persons and private words are rare."""

import re

import pytest

from exercises.judging.sources import all_sources
from tests.docs.test_docs import READMES, words_of

PERSONA = r"nobody|somebody|anybody|everybody|whoever|whomever|whom|those who|(?:one|anyone) who|who wants|we|us|ours?"
PRIVATE = (
    r"seats?|knees?|visitors?|strangers?|dice|dies? is thrown|obituary|bury|lay out anew|talks? between|own_work"
    r"|drafts that (?:do not )?stand|what comes back|what came of it|where they lie"
)
PER_THOUSAND = 0.5
PHASES = sorted({file.relative_to(READMES[0].parent).parts[0] for file in READMES if "phase" in str(file)})


def marked(text: str) -> list[str]:
    """The pronouns and private words in the prose of a page; code, addresses and quotations do not count."""
    prose = re.sub(r"```.*?```", " ", text, flags=re.DOTALL)
    prose = re.sub(r"`[^`]*`|^ {4}.*$|^>.*$|\]\([^)]*\)|\"[^\"\n]*\"", " ", prose, flags=re.MULTILINE)
    return re.findall(rf"\b(?:{PERSONA}|{PRIVATE})\b", prose, re.IGNORECASE)


def texts_in(folder: str) -> list[str]:
    """The pages of a phase, of "." or of "exercises": hints, diagnoses, and the text cells of the sources."""
    if folder != "exercises":
        pages = [f for f in READMES if (folder in f.parts if folder != "." else "phase" not in str(f))]
        return [page.read_text(encoding="utf-8") for page in pages]
    sources = [source.read_text(encoding="utf-8") for source in all_sources()]
    cells = ["\n".join(re.findall(r"^# ?(?!%%)(.*)$", source, re.MULTILINE)) for source in sources]
    return cells + [source.with_suffix(".txt").read_text(encoding="utf-8") for source in all_sources()]


@pytest.mark.parametrize("folder", [*PHASES, ".", "exercises"])
def test_actors_are_named_and_terms_are_the_fields(folder):
    texts = texts_in(folder)
    found = [word for text in texts for word in marked(text)]
    words = sum(map(words_of, texts))
    assert 1000 * len(found) <= PER_THOUSAND * words, f"{found} in {words:,} words"
