"""Extends Sphinx: pieces, terms with their definitions, and a build that fails where a text is missing."""

import html
import re
import textwrap
from functools import cache
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger

from web.glossary import Entry, Terms, read_glossary
from web.on_page import PIECES, piece_of
from web.pieces.piece import HOW_TO_RUN
from web.texts import read_contents

glossary = cache(read_glossary)  # once, for all pages
WORDS_A_MINUTE = 200  # the READMEs of the phases count with the same number
NO_PROSE = (nodes.title, nodes.literal, nodes.literal_block, nodes.math, nodes.math_block, nodes.reference, nodes.raw,
            nodes.thead, pending_xref)  # fmt: skip
LOG = getLogger(__name__)  # a warning ends the build: build.py asks Sphinx for that


def set_by_click(task: str) -> str:
    """Return a task as HTML: in "try [two bits]{bits=0}" the words in brackets are a button that sets the piece's control.

    Several settings are divided by "; ". "!add" presses the button `data-do="add"`.
    """
    return re.sub(
        r"\[([^]]+)\]\{([^}]+)\}", r'<button type="button" data-set="\2">\1</button>', html.escape(task)
    )


class PieceDirective(Directive):
    """```{piece} tokens: the piece's text, which its module replaces where scripts run."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        if name not in PIECES:
            raise self.error(f"no piece is called {name!r}: web/on_page.py has them")
        (title, task), piece = read_contents().pieces[name], piece_of(name)
        text = piece.fallback.replace(f" {HOW_TO_RUN}", "")
        page = (
            f'<section class="piece" data-piece="{name}" data-module="{piece.module}" aria-label="{html.escape(title)}">'
            f'<p class="task"><b>{html.escape(title)}</b> {set_by_click(task)}</p><div class="live"></div><details class="words" open><summary>{html.escape(title)}: in words</summary>'
            f"<pre>{html.escape(text)}</pre></details></section>"
        )
        return [nodes.raw("", page, format="html")]


def mark_terms(app: Sphinx, document: nodes.document) -> None:
    """Underline each term where the section first uses it, and attach its definition. A term (a word in bold) that no glossary
    has ends the build.
    """
    section = app.config.web_sections.get(app.env.docname)
    if section is None and app.env.docname != "index":
        return
    terms = Terms(glossary(), app.config.web_ambiguous, section.texts if section else ())
    for text in list(document.findall(nodes.Text)):
        parent = text.parent
        if not prose(text):
            continue
        if section and isinstance(parent, nodes.strong) and is_term(parent):
            entry = terms.explained(re.sub(r" \(.*\)", "", " ".join(text.split())))
            if entry is None:
                LOG.warning("**%s** is explained here, and in no glossary", text, location=parent)
                continue
            if terms.is_first(entry):
                parent.replace(text, marked(entry, text))
            continue
        parts: list[nodes.Node] = []
        end = 0
        for start, stop, entry in terms.within(text.astext()):
            word = text.astext()[start:stop]
            parts += [nodes.Text(text.astext()[end:start]), *marked(entry, nodes.Text(word))]
            end = stop
        if parts:
            parent.replace(text, [*parts, nodes.Text(text.astext()[end:])])


def prose(text: nodes.Text) -> bool:
    """Tell whether this is running text: no heading, code, link or caption."""
    node: Any = text.parent
    while not isinstance(node, nodes.document):
        if isinstance(node, NO_PROSE):
            return False
        node = node.parent
    return True


def is_term(bold: nodes.strong) -> bool:
    """Tell whether a bold word is a term. The rule of the texts: it is in lower case and within a sentence, which explains it."""
    sentence = bold.parent
    if not isinstance(sentence, nodes.paragraph) or isinstance(sentence.parent, nodes.entry):
        return False
    before = "".join(node.astext() for node in sentence.children[: sentence.index(bold)])
    return bold.astext()[0].islower() and before.strip() != ""


def marked(entry: Entry, word: nodes.Text) -> list[nodes.Node]:
    """Return a term as a link with its definition."""
    meaning = html.escape(entry.meaning.replace("**", "").replace("`", ""))
    begin = f'<a class="term" href="glossary.html#{entry.key}" data-definition="{meaning}">'
    return [nodes.raw("", begin, format="html"), word, nodes.raw("", "</a>", format="html")]


def frame_what_is_wide(app: Sphinx, document: nodes.document) -> None:
    """Put each table and picture into a frame, which scrolls on a narrow screen, so that the page does not."""
    for wide in [*document.findall(nodes.table), *document.findall(nodes.image)]:
        begin, end = '<span class="wide" tabindex="0">', "</span>"
        wide.parent.replace(
            wide, [nodes.raw("", begin, format="html"), wide, nodes.raw("", end, format="html")]
        )


def check_pictures(app: Sphinx, document: nodes.document) -> None:
    """End the build at a picture without a description for screen readers."""
    for image in document.findall(nodes.image):
        if not image.get("alt", "").strip():
            LOG.warning("%s has no description for screen readers", image["uri"], location=image)


def write_math(page: Any, node: nodes.math | nodes.math_block) -> None:
    """Write mathematics as MathML, which browsers draw without a script. An unknown command ends the build."""
    block = isinstance(node, nodes.math_block)
    try:
        drawn = tex2mathml(node.astext(), as_block=block)
    except MathError as error:
        LOG.warning("$%s$: %s", node.astext(), error, location=node)
        drawn = ""
    page.body.append(f'<span class="wide" tabindex="0">{drawn}</span>' if block else drawn)
    raise nodes.SkipNode


def add_context(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Give the theme more than Sphinx does: the sections, and the place of this page among them."""
    context["sections"] = list(app.config.web_sections.values())
    context["section"] = app.config.web_sections.get(page)
    if doctree is not None:
        # Without raw parts: definitions, and pieces in words.
        texts = [t for t in doctree.findall(nodes.Text) if not isinstance(t.parent, nodes.raw)]
        words = sum(len(text.split()) for text in texts)
        context["minutes"] = max(1, round(words / WORDS_A_MINUTE))
        paragraphs = (p.astext() for p in doctree.findall(nodes.paragraph) if not any(p.findall(nodes.image)))
        first = next((t for t in paragraphs if len(t) > 60 and not t.startswith("Level:")), "")
        context["description"] = textwrap.shorten(first, 200, placeholder=" ...")


def setup(app: Sphinx) -> dict[str, Any]:
    contents = read_contents()
    app.add_config_value("web_sections", {s.name: s for s in contents.sections}, "env")
    app.add_config_value("web_ambiguous", contents.ambiguous, "env")
    app.add_directive("piece", PieceDirective)
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))
    app.connect("doctree-read", mark_terms)
    app.connect("doctree-read", frame_what_is_wide)
    app.connect("doctree-read", check_pictures)
    app.connect("html-page-context", add_context)
    return {"parallel_read_safe": True}
