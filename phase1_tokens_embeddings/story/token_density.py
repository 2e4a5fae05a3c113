"""Texts to look at, and how many characters of them a token holds: for tokenization_lab.py.

The texts in `texts/` were written for the course. Three of them tell one and the same story, in English,
Chinese and Hindi: only so can the tokens of two languages be compared fairly, because a Chinese character
says about as much as a short English word. And `tales.txt` was written by the course's model (see phase 2's `texts/`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle, pairwise
from pathlib import Path

from matplotlib.figure import Figure

from labkit.figures import BLUE, COLORS, GREY, new_figure
from phase1_tokens_embeddings.tokens import Tokenizer

CONTENT = {  # name of each sample text, in the order in which they are shown
    "prose": "English story",
    "technical": "technical text",
    "code": "Python code",
    "chinese": "story in Chinese",
    "hindi": "story in Hindi",
}
PARTS = 8  # a text is cut into so many equal parts to show the spread
_TEXTS = Path(__file__).parents[1] / "texts"


def sample_text(name: str) -> str:
    """One of the course's own texts: `name` is a key of CONTENT, or "tales"."""
    return (_TEXTS / f"{name}.txt").read_text(encoding="utf-8")


def course_texts() -> list[str]:
    """The default training text: the course's own English texts, and tales that its model wrote.

    These texts never change, because a chapter prints the merges that are learned from them.
    """
    return [sample_text(name) for name in ("prose", "technical", "tales")]


@dataclass(frozen=True)
class Density:
    """Characters per token: of a whole text (`mean`), and of its least and its most dense part."""

    characters: int
    tokens: int
    lowest: float
    highest: float

    @property
    def mean(self) -> float:
        return self.characters / self.tokens


def measure_density(tok: Tokenizer, text: str) -> Density:
    """Measure a text of at least `PARTS` characters as a whole, and cut into `PARTS` equal parts.

    A character is what Python's `len` counts, a Unicode code point.
    """
    cuts = [i * len(text) // PARTS for i in range(PARTS + 1)]
    spread = [(end - start) / len(tok.encode(text[start:end])) for start, end in pairwise(cuts)]
    return Density(len(text), len(tok.encode(text)), min(spread), max(spread))


def characters_that_fit(tok: Tokenizer, text: str, tokens: int) -> int:
    """Fill a context of `tokens` tokens with a text, over and over, and count the characters inside."""
    copies = math.ceil(tokens / len(tok.encode(text))) + 1
    return len(tok.decode(tok.encode(text * copies)[:tokens]))


def draw_density(found: Mapping[str, Mapping[str, Density]], labels: Mapping[str, str]) -> Figure:
    """Density by text and vocabulary, and beside it the price of one story in three languages.

    Args:
        found: vocabulary -> text -> density. The first vocabulary is the one on the right.
        labels: text -> its name for people.
    """
    first = next(iter(found))
    names = list(found[first])
    ratios = [found[first][n].tokens / found[first]["prose"].tokens for n in ("prose", "chinese", "hindi")]
    fig, (left, right) = new_figure(
        f"The same story takes {ratios[1]:.1f} times as many tokens in Chinese as in English, "
        f"{ratios[2]:.1f} times in Hindi",
        f"Above: a dot is a whole text, a line goes from the least to the most dense of its {PARTS} parts. "
        f"Title and below: vocabulary of {first}.",
        panels=2,
    )
    for row, (vocabulary, color) in enumerate(zip(found, cycle(COLORS))):
        apart = min(0.22, 0.8 / len(found))
        ys = [i + apart * (row - (len(found) - 1) / 2) for i in range(len(names))]
        ds = [found[vocabulary][n] for n in names]
        left.hlines(ys, [d.lowest for d in ds], [d.highest for d in ds], color=color, alpha=0.45, linewidth=4)
        left.plot([d.mean for d in ds], ys, "o", color=color, label=vocabulary)
    left.set_yticks(range(len(names)), [labels[n] for n in names])
    left.invert_yaxis()
    left.set(xlabel="characters per token", xlim=(0, None))
    left.legend(loc="lower right")
    bars = right.bar(["English", "Chinese", "Hindi"], ratios, color=[GREY, BLUE, BLUE], width=0.6)
    right.bar_label(bars, [f"{r:.1f}×" for r in ratios], padding=2)
    right.margins(y=0.1)
    right.set_ylabel("tokens for the same story (English = 1)")
    return fig
