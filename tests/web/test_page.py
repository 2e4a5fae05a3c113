"""The page in a browser: nothing in the console, no other host, links that hold, small, and usable by everybody."""

import gzip
import re
from html import unescape
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.web.clicking import expect
from web.texts import read_contents

SECTIONS = [section.name for section in read_contents().sections]
PAGES = ["index", *SECTIONS, "recap", "further-reading", "ledger", "glossary", "search", "404"]
MOST_BYTES = 500_000


@pytest.mark.proof
def test_every_link_holds_and_nothing_is_loaded_from_elsewhere(site):
    pages = {p.relative_to(site).as_posix(): p.read_text(encoding="utf-8") for p in site.rglob("*.html")}
    assert {f"{name}.html" for name in PAGES} <= set(pages)
    anchors = {
        name: {unescape(a) for a in re.findall(r'\s(?:id|name)="([^"]+)"', page)}
        for name, page in pages.items()
    }
    for name, page in pages.items():
        for kind, target in re.findall(r'\s(href|src)="([^"]+)"', page):
            if urlsplit(target).scheme:
                assert kind == "href", f"{name} loads {target}"
                continue
            path, _, anchor = unquote(urljoin(f"/{name}", unescape(target))).lstrip("/").partition("#")
            assert (site / path).is_file(), f"{name}: {target}"
            assert not anchor or anchor in anchors[path], f"{name}: {target}"
    for name in SECTIONS:
        place = re.search(rf"Section \d+ of {len(SECTIONS)} · (\d+) minute", pages[f"{name}.html"])
        assert place and 1 <= int(place[1]) <= 30, name


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_small_fits_a_telephone_and_can_be_used_by_everybody(open_page, address, name):
    """And there is no complaint in the console, and no request to another host: `open_page` sees to that."""
    page = open_page(None, viewport={"width": 375, "height": 800}, color_scheme="light")
    sizes = {}
    page.on("response", lambda response: sizes.update({response.url: packed(response)}))
    page.goto(f"{address}{name}.html")
    page.evaluate("document.querySelectorAll('main details').forEach((d) => { d.open = true; })")
    page.wait_for_function(ALIVE)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    assert sum(sizes.values()) <= MOST_BYTES, sorted(sizes.items(), key=lambda item: -item[1])[:5]
    for colours, options in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
        page.emulate_media(color_scheme=colours)
        found = Axe().run(page, options=options | {"resultTypes": ["violations"]}).response["violations"]
        serious = [v for v in found if v["impact"] in ("serious", "critical")]
        assert [(v["id"], [node["html"][:150] for node in v["nodes"]][:3]) for v in serious] == [], colours


# As a reader scrolls, from piece to piece, until all have come to life.
ALIVE = """() => {
  const asleep = document.querySelector("[data-piece]:not([data-alive])");
  asleep?.scrollIntoView();
  return !asleep;
}"""


def packed(response) -> int:
    """Bytes that a server sends, compressed if that makes them fewer; weights and empty answers are not counted."""
    if not response.ok or response.url.endswith("model.safetensors"):
        return 0
    body = response.body()
    return min(len(body), len(gzip.compress(body)))


# ---------------------------------------------------------------------- terms


def test_a_term_opens_by_mouse_keyboard_and_tap_and_closes(open_page):
    page = open_page("tokens")
    term, definition = page.locator("a.term").first, page.locator("#definition")
    said = term.get_attribute("data-definition")
    term.hover()
    assert definition.is_visible() and definition.text_content() == said
    page.mouse.move(5, 400)
    assert definition.is_hidden()
    term.focus()
    assert definition.is_visible() and term.get_attribute("aria-describedby") == "definition"
    page.keyboard.press("Escape")
    assert definition.is_hidden()
    phone = open_page("tokens", has_touch=True, viewport={"width": 375, "height": 800})
    for other in phone.locator("main > section > p > a.term").all():
        other.scroll_into_view_if_needed()
        other.tap()
        box = phone.locator("#definition").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 375
    assert phone.url.endswith("tokens.html")  # a tap opens and does not leave


def test_the_whole_page_by_keyboard(open_page):
    page = open_page("tokens")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "text"


FOUND = {
    "hash chain": "Prefix caching",
    "kv cache": "The KV cache",
    "tokenizer": "Tokens",
    "slow decode": "The KV cache",
}


@pytest.mark.parametrize("query, first", FOUND.items())
def test_the_search_shows_the_section_of_this_title_first(open_page, address, query, first):
    page = open_page(None)
    page.goto(f"{address}search.html?q={query}")
    page.locator(".search-summary", has_text="Search finished").wait_for()
    found = page.locator("#search-results li")
    assert found.count() < 20  # sections, not files of code
    assert found.first.text_content().startswith(first)
    assert "Level:" not in (text := "".join(found.all_text_contents())) and "Section 1" not in text
    page.goto(f"{address}search.html?q=chatgpt")
    page.get_by_text("No section has these words.").wait_for()


def test_light_and_dark_are_the_readers_choice_and_stay(open_page):
    page = open_page("tokens", color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.locator("#theme").click()
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    assert page.evaluate(ground) == dark
    page.locator("#theme").click()
    assert page.evaluate(ground) == light


def test_without_javascript_text_and_pictures_stay(open_page):
    page = open_page("sampling", java_script_enabled=False, viewport={"width": 375, "height": 800})
    words = page.locator('[data-piece="sampling"] .words pre')
    assert words.is_visible() and "The likeliest tokens after" in words.text_content()
    picture = page.locator("main img").first
    picture.scroll_into_view_if_needed()
    assert picture.is_visible() and picture.bounding_box()["height"] > 50
    for width in (375, 1440):  # folded, and there to be unfolded
        page.set_viewport_size({"width": width, "height": 800})
        assert page.locator("#menu a", has_text="Tokens").is_hidden()
        page.locator("#menu summary").click()
        assert page.locator("#menu a", has_text="Tokens").is_visible()
        page.locator("#menu summary").click()


def test_on_paper_answers_are_unfolded_and_pieces_are_words(open_page):
    page = open_page("tokens", color_scheme="dark")
    page.locator("#theme").click()
    page.locator("#theme").click()  # chosen now, not the system's
    page.wait_for_selector("[data-alive]", state="attached")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(31, 41, 51)"  # dark ink
    assert page.locator("header").is_hidden() and page.locator("nav").is_hidden()
    assert page.locator(".words pre").is_visible()
    assert page.locator("details", has_text="after 1,000").locator("pre").is_visible()


# ---------------------------------------------------------------------- weights


def test_weights_that_do_not_arrive_are_one_line_and_a_button(piece_on, open_page):
    page, piece = piece_on("sampling", "sampling")
    page.context.route("**/model.safetensors", lambda route: route.fulfill(status=503, body="busy"))
    piece.get_by_label("text").fill("The king")
    notice = piece.locator(".weights").first  # the second is the small model's
    notice.get_by_role("button", name="try again").wait_for()
    assert "The model's weights did not arrive (503" in notice.text_content()
    page.context.unroute("**/model.safetensors")
    before = piece.locator('[data-name="the likeliest"]').text_content()
    notice.get_by_role("button", name="try again").click()
    expect(piece.locator('[data-name="the likeliest"]')).not_to_have_text(before)
    assert notice.is_hidden()
    # The browser itself complains of the 503, as it should; nobody else does.
    assert [c for c in open_page.complaints if "503" not in c] == []
    open_page.complaints.clear()
