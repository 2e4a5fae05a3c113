"""A build that lacks a text fails, and says where."""

import pytest
from PIL import Image

from labkit.errors import LabError
from web.build import run_sphinx
from web.texts import Contents, Section, read_contents

GOOD = "# Tokens\n\nA **token** is a piece of text: $B = 16$, not $2.90 of $3.\n\n![what one sees](/copies/a.png)\n\n```{piece} tokens\n```\n"


@pytest.fixture
def source(tmp_path):
    """source(text) is a folder with a page of one section, `tokens`."""

    def write(text: str):
        folder = tmp_path / "source"
        (folder / "copies").mkdir(parents=True)
        Image.new("L", (1, 1)).save(folder / "copies" / "a.png")
        (folder / "index.md").write_text(
            "# T\n\n```{toctree}\n:hidden:\n\ntokens\nglossary\n```\n", encoding="utf-8"
        )
        (folder / "glossary.md").write_text("# Glossary\n", encoding="utf-8")
        (folder / "tokens.md").write_text(text, encoding="utf-8")
        return tmp_path

    return write


@pytest.fixture
def one_section(monkeypatch):
    section = Section(1, "tokens", "Tokens", ("phase1_tokens_embeddings/chapters/02-tokens.md",))
    contents = Contents((section,), frozenset(), read_contents().pieces)
    monkeypatch.setattr("web.extension.read_contents", lambda: contents)


def test_a_good_one_is_built(source, one_section):
    folder = source(GOOD)
    run_sphinx(folder)
    page = (folder / "site" / "tokens.html").read_text(encoding="utf-8")
    assert (
        '<a class="term" href="glossary.html#token" data-definition="a piece of text with an id.">token</a>'
        in page
    )
    assert 'data-piece="tokens"' in page
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML"' in page and "not $2.90 of $3." in page
    assert "<script" not in page.partition("<main")[2].partition("</main")[0]


@pytest.mark.parametrize(
    "wrong, says",
    [
        (GOOD.replace("**token**", "**gizmo**"), "**gizmo** is explained here, and in no glossary"),
        (GOOD.replace("what one sees", ""), "has no description for screen readers"),
        (GOOD.replace("B = 16", r"\gizmo"), r"\gizmo"),
        (GOOD.replace("} tokens", "} gizmos"), "no piece is called 'gizmos'"),
        (GOOD + "\n[nowhere](/nowhere.md)\n", "nowhere"),
        (GOOD.replace("a.png", "b.png"), "b.png"),
    ],
)
def test_what_is_missing_ends_the_build(source, one_section, capfd, wrong, says):
    assert wrong != GOOD
    with pytest.raises(LabError, match="was not built"):
        run_sphinx(source(wrong))
    assert says in capfd.readouterr().err
