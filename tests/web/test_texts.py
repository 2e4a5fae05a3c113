"""The texts of the page: the chapters, each once, with links that lead somewhere and terms that are explained."""

import re

import pytest

from labkit.catalog import SCRIPTS, glossary_of
from web import texts
from web.glossary import Entry, Terms, pattern, read_glossary
from web.on_page import PIECES
from web.texts import WEB, Contents, Linker, read_contents, text_of


@pytest.fixture
def written(tmp_path, monkeypatch):
    """written(name, text) writes a file where texts.py looks for it."""
    monkeypatch.setattr(texts, "ROOT", tmp_path)

    def write(name: str, text: str) -> str:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return name

    return write


@pytest.fixture
def table(tmp_path):
    """table(a=[FILE, ...], b=...) is a table of contents with these sections."""

    def write(**sections: list[str]) -> Contents:
        entries = [
            f'[[section]]\nname = "{n}"\ntitle = "T"\ntexts = {texts}' for n, texts in sections.items()
        ]
        file = tmp_path / "contents.toml"
        file.write_text("ambiguous = []\n" + "\n".join(entries), encoding="utf-8")
        return read_contents(file)

    return write


def test_a_section_is_its_chapters_and_of_several_each_keeps_its_title(written, table):
    one = written(
        "phase3_x/chapters/02-a.md", "# A\n\n*Level: core*\n\n```\n## no heading\n```\n\n## A1\n\ntwo\n"
    )
    other = written("phase3_x/chapters/03-b.md", "# B\n\nthree\n\n## B1\n")
    section, both = table(a=[one], b=[written("c.md", "# C\n"), other]).sections
    assert text_of(section) == [(one, "*Level: core*\n\n```\n## no heading\n```\n\n## A1\n\ntwo")]
    assert text_of(both) == [("c.md", "## C\n\n"), (other, "## B\n\nthree\n\n### B1")]


def test_a_wrong_table_is_refused(written, table):
    file = written("a.md", "# A\n")
    with pytest.raises(ValueError, match=r"two sections of contents\.toml want a\.md"):
        table(a=[file], b=[file])
    with pytest.raises(ValueError, match=r"there is no b\.md"):
        table(a=["b.md"])


def test_links_lead_to_sections_and_to_files_that_come_along(written, table):
    one, two = written("a/01-first.md", "# First\n"), written("a/02-hits.md", "# Two hits\n")
    written("docs/ENGINES.md", "# Engines\n")
    linker = Linker(table(begin=[one, two]))
    said = linker.rewrite(
        "[P1](../a/01-first.md) [loop](engine/core.py) [there](https://a.example) ![f](figures/load.png) "
        "`[code](engine/core.py)` `two\nlines` [`run`](engine/core.py) [where](../a/02-hits.md#limits) "
        "[who](../a/02-hits.md) [word](../a/chapters/glossary.md) [what](../docs/ENGINES.md#who)",
        "c/README.md",
    )
    assert said == (
        "[P1](/begin.md) [loop](/files/c/engine/core.py.md) [there](https://a.example) ![f](/copies/c/figures/load.webp) "
        "`[code](engine/core.py)` `two\nlines` [`run`](/files/c/engine/core.py.md) [where](/begin.md#limits) "
        "[who](/begin.md#two-hits) [word](/glossary.md) [what](/files/docs/ENGINES.md.md#who)"
    )
    assert list(linker.files) == ["c/engine/core.py", "docs/ENGINES.md"]
    assert list(linker.copies) == ["c/figures/load.png"]


def test_pieces_are_named_in_texts_and_known():
    texts_of = [text for section in read_contents().sections for _, text in text_of(section)]
    texts_of += [page.read_text(encoding="utf-8") for page in (WEB / "pages").glob("*.md")]
    named = re.findall(r"<!-- piece: ([\w-]+) -->", "\n".join(texts_of))
    assert sorted(named) == sorted(PIECES) == sorted(read_contents().pieces)


# ---------------------------------------------------------------------- terms


def test_the_glossary_has_what_all_phases_have():
    entries = read_glossary()
    assert len({e.key for e in entries}) == len(entries) > 100
    assert sum(glossary_of(phase)[1].count("\n- ") for phase in SCRIPTS) == len(entries)
    assert {e.file for e in entries if e.names[0] == "Block"} == {
        glossary_of(phase)[0] for phase in ("phase2_attention_kvcache", "phase3_paged_attention")
    }


@pytest.mark.parametrize(
    "name, found, not_found",
    [
        ("Preemption", "preempted preemptions", "preemptive"),
        ("Ablation", "ablated ablations", "able"),
        ("Quantization", "quantised Quantization", "quantity"),
        ("KV cache", "KV caches", "cache"),
        ("SLO", "SLO SLOs", "slo slow"),
        ("Evict", "evicts evicted", "eviction-less victim"),
    ],
)
def test_terms_are_found_in_their_forms(name, found, not_found):
    form = pattern(name)
    assert all(form.search(word) for word in re.findall(r"KV \w+|\w+", found))
    assert not any(form.fullmatch(word) for word in not_found.split())


def test_only_the_first_use_and_the_longer_term():
    entries = [
        Entry((n,), "m", f, n.lower())
        for n, f in (("Cache", "a"), ("KV cache", "b"), ("Block", "a"), ("Block", "b"))
    ]
    terms = Terms(entries, frozenset(), {"b"})
    text = "A KV cache is a cache. A KV cache has blocks; a block is memory."
    assert [(text[a:b], e.file) for a, b, e in terms.within(text)] == [
        ("KV cache", "b"),
        ("cache", "a"),
        ("blocks", "b"),
    ]
    assert terms.within(text) == []
    assert Terms(entries, frozenset({"block"})).within("a block") == []
