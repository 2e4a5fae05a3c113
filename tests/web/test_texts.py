"""The texts of the page: taken from the chapters and READMEs, each once, with links that lead somewhere and terms that are explained."""

import re

import pytest

from labkit.catalog import SCRIPTS, glossary_of
from web import texts
from web.glossary import Entry, Terms, pattern, read_glossary
from web.on_page import PIECES
from web.texts import WEB, Contents, Linker, Section, headings_of, read_contents, take, text_of


@pytest.fixture(scope="module")
def contents():
    return read_contents()


@pytest.fixture
def readme(tmp_path, monkeypatch):
    """readme(text) writes phase1_x/README.md where texts.py looks for it."""
    monkeypatch.setattr(texts, "ROOT", tmp_path)

    def write(text: str, name: str = "phase1_x/README.md") -> str:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return name

    return write


def table(tmp_path, *entries: str):
    """A table with the sections a, b, ...; each entry is FILE: HEADING."""
    file = tmp_path / "contents.toml"
    sections = [
        f'[[section]]\nname = "{name}"\ntitle = "T"\ntexts = ["{entry}"]'
        for name, entry in zip("abc", entries)
    ]
    file.write_text("ambiguous = []\n" + "\n".join(sections), encoding="utf-8")
    return read_contents(file)


def test_a_text_ends_where_its_heading_ends_and_code_has_no_headings(readme, tmp_path):
    file = readme("# T\n\n## A\n\none\n\n```\n# no heading\n```\n\n### A1\n\ntwo\n\n## B\n\nthree\n")
    assert [h.title for h in headings_of(file)] == ["T", "A", "A1", "B"]
    contents = table(tmp_path, f"{file}: A")
    assert take(contents, file, "A") == "one\n\n```\n# no heading\n```\n\n## A1\n\ntwo"


def test_of_several_texts_each_keeps_its_heading(readme):
    file = readme("## A\n\none\n\n### A1\n\ntwo\n\n## B\n\nthree\n")
    one, both = (Section(1, "a", "T", tuple((file, h) for h in hs)) for hs in ("A", "AB"))
    contents = Contents((), frozenset())
    assert text_of(contents, one) == [(file, "one\n\n## A1\n\ntwo")]
    assert text_of(contents, both) == [(file, "## A\n\none\n\n### A1\n\ntwo"), (file, "## B\n\nthree")]


def test_a_text_may_be_a_whole_chapter(readme, tmp_path):
    file = readme("# Blocks\n\n*Level: core*\n\none\n\n## A table\n\ntwo\n", "phase3_x/chapters/02-blocks.md")
    other = readme("# Hits\n\nsee [it](02-blocks.md#a-table)\n\n## A chain\n", "phase3_x/chapters/03-hits.md")
    toml = tmp_path / "contents.toml"
    toml.write_text(
        f'ambiguous = []\n[[section]]\nname = "one"\ntitle = "T"\ntexts = ["{file}"]\n'
        f'[[section]]\nname = "both"\ntitle = "T"\ntexts = ["{readme("## B", "phase3_x/README.md")}: B", "{other}"]\n',
        encoding="utf-8",
    )
    contents = read_contents(toml)
    assert text_of(contents, contents.sections[0]) == [(file, "*Level: core*\n\none\n\n## A table\n\ntwo")]
    assert text_of(contents, contents.sections[1])[1][1].startswith("## Hits\n\nsee")
    linker = Linker(contents)
    for target, place in (
        ("02-blocks.md", "/one.md"),
        ("02-blocks.md#a-table", "/one.md#a-table"),
        ("03-hits.md", "/both.md#hits"),
        ("03-hits.md#a-chain", "/both.md#a-chain"),
        ("../README.md", "/both.md"),
        ("glossary.md", "/glossary.md"),
    ):
        assert linker.target(target, file) == place
    assert linker.files == {}


@pytest.mark.parametrize("entries, says", [(["A", "A"], "two sections"), (["C"], "no heading 'C'")])
def test_a_wrong_table_is_refused(readme, tmp_path, entries, says):
    file = readme("## A\n\none\n")
    with pytest.raises(ValueError, match=says):
        table(tmp_path, *(f"{file}: {entry}" for entry in entries))


def test_links_lead_to_sections_and_to_files_that_come_along(readme, tmp_path):
    one, two = readme("# P1\n\n## Begin\n", "a/README.md"), readme("# P2\n\n## Limits\n", "b/README.md")
    readme("# Engines\n", "docs/ENGINES.md")
    linker = Linker(table(tmp_path, f"{one}: Begin", f"{two}: Limits"))
    said = linker.rewrite(
        "[P1](../a/README.md) [loop](engine/core.py) [there](https://a.example) ![f](figures/load.png) "
        "`[code](engine/core.py)` `two\nlines` [`run`](engine/core.py) [where](../b/README.md#limits) "
        "[what](../docs/ENGINES.md#who)",
        "c/README.md",
    )
    assert said == (
        "[P1](/a.md) [loop](/files/c/engine/core.py.md) [there](https://a.example) ![f](/copies/c/figures/load.webp) "
        "`[code](engine/core.py)` `two\nlines` [`run`](/files/c/engine/core.py.md) [where](/b.md) "
        "[what](/files/docs/ENGINES.md.md#who)"
    )
    assert list(linker.files) == ["c/engine/core.py", "docs/ENGINES.md"]
    assert list(linker.copies) == ["c/figures/load.png"]


def test_pieces_are_named_in_texts_and_known(contents):
    texts_of = [take(contents, file, heading) for s in contents.sections for file, heading in s.texts]
    texts_of += [page.read_text(encoding="utf-8") for page in (WEB / "pages").glob("*.md")]
    named = re.findall(r"<!-- piece: ([\w-]+) -->", "\n".join(texts_of))
    assert sorted(named) == sorted(PIECES)


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


def test_only_the_first_use_and_the_longer_term(monkeypatch):
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
