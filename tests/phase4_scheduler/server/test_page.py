"""The page at `/`, clicked in Chromium: tokens stream, figures live, and whatever goes wrong is one line."""

import json
import math
import re

import pytest

from phase4_scheduler.server.client import running_server

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
pytestmark = pytest.mark.proof
HOSTILE = "<img src=x onerror=\"document.title='taken'\">"


@pytest.fixture(scope="module")
def server():
    with running_server("--dtype", "float32", "--served-model-name", HOSTILE) as running:
        yield running


@pytest.fixture
def open_page(browser):
    """open_page(address) shows the page of that server; what the page complains of fails the test."""
    complaints, contexts = [], []

    def open_it(address, **options):
        contexts.append(browser.new_context(**{"viewport": {"width": 1200, "height": 900}} | options))
        page = contexts[-1].new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda m: complaints.append(m.text) if "Content Security" in m.text else None)
        page.on("request", lambda r: complaints.append(r.url) if not r.url.startswith(address) else None)
        page.goto(address)
        until(page, "#blocks", re.compile(" of "))  # the first figures are there
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert not complaints


def until(page, selector, text):
    """Wait until an element says so."""
    playwright.expect(page.locator(selector)).to_have_text(text, timeout=60_000)


def send(page, prompt, max_tokens=30, times=1):
    page.fill("#prompt", prompt)
    page.fill("#max-tokens", str(max_tokens))
    page.fill("#temperature", "0")
    # All in one go: between two clicks of a hand an answer may end.
    clicks = "(button, times) => { for (let i = 0; i < times; i++) button.click(); }"
    page.eval_on_selector("button[type=submit]", clicks, times)


def api(server, path, body):
    return json.loads(server.call(path, body)[1])


def test_an_answer_is_the_apis_token_by_token(server, open_page):
    page = open_page(server.address)
    send(page, "Once upon a time")
    until(page, ".state", re.compile("^ended"))
    asked = {"prompt": "Once upon a time", "max_tokens": 30, "temperature": 0, "logprobs": 5}
    choice = api(server, "/v1/completions", asked)["choices"][0]
    logprobs = choice["logprobs"]
    tokens = page.locator(".token")
    assert page.locator(".tokens").text_content() == choice["text"]
    assert tokens.all_text_contents() == logprobs["tokens"]
    assert page.locator(".count").text_content() == str(len(logprobs["tokens"]))
    assert re.fullmatch(r"[\d.]+ ms", page.locator(".ttft").text_content())
    # On a busy machine all tokens may lie there at once: then there is no gap to tell.
    assert re.fullmatch(r"[\d.]+ ms|–", page.locator(".itl").text_content())
    for number in (0, 7):
        tokens.nth(number).hover()
        probability = 100 * math.exp(logprobs["token_logprobs"][number])
        until(page, "#choices p", re.compile(rf" was {probability:.1f}% likely$"))
        rows = page.locator("#choices .percent").all_text_contents()
        shares = [100 * math.exp(value) for value in logprobs["top_logprobs"][number].values()]
        assert rows == ["< 0.1%" if share < 0.1 else f"{share:.1f}%" for share in sorted(shares)[::-1]]
    shade = "element => element.style.getPropertyValue('--unlikely')"
    shades = [float(tokens.nth(i).evaluate(shade)) for i in range(10)]
    expected = [min(1, -value / math.log(1000)) for value in logprobs["token_logprobs"][:10]]
    assert shades == pytest.approx(expected, abs=1e-3)


def test_a_chat_remembers_its_turns(server, open_page):
    page = open_page(server.address)
    page.get_by_label("Chat").check()
    messages = []
    for turn, said in enumerate(["Who lives in the forest?", "And then?"]):
        send(page, said, max_tokens=8)
        until(page, f"article:nth-last-child({turn + 1}) .state", re.compile("^ended"))
        messages.append({"role": "user", "content": said})
        asked = {"messages": messages, "max_tokens": 8, "temperature": 0}
        messages.append(api(server, "/v1/chat/completions", asked)["choices"][0]["message"])
        assert page.locator(".tokens").first.text_content() == messages[-1]["content"]
    page.click("#forget")
    send(page, "And then?", max_tokens=8)
    until(page, "article:nth-last-child(3) .state", re.compile("^ended"))
    alone = api(server, "/v1/chat/completions", asked | {"messages": [messages[2]]})
    assert page.locator(".tokens").first.text_content() == alone["choices"][0]["message"]["content"]


def test_figures_move_while_answers_run_and_stop_frees_the_engine(server, open_page):
    page, other = open_page(server.address), open_page(server.address)
    send(page, "Once upon a time", max_tokens=1000, times=2)
    for seen in (page, other):  # all see all users
        until(seen, "#running", "2")
        until(seen, "#used", re.compile("^[1-9]"))
        until(seen, "#rate", re.compile("^[1-9]"))
    page.eval_on_selector_all(".stop", "(buttons) => buttons.forEach((button) => button.click())")
    for seen in (page, other):
        for figure in ("#running", "#waiting", "#used", "#rate"):
            until(seen, figure, "0")
    metrics = server.metrics()
    assert metrics["vllm:num_requests_running"] == metrics["vllm:kv_cache_usage_perc"] == 0
    assert page.locator(".state").all_text_contents() == ["stopped by you: the server frees its blocks"] * 2


def test_hostile_text_stays_text(server, open_page):
    """In a prompt, in the model's name, and in what a model writes."""
    page = open_page(server.address)
    assert HOSTILE in page.locator("#model").text_content()
    logprobs = {
        "tokens": [HOSTILE],
        "token_logprobs": [-1],
        "top_logprobs": [{HOSTILE: -1, "<b>bold</b>": -2}],
    }
    chunk = {"choices": [{"text": HOSTILE, "logprobs": logprobs, "finish_reason": "stop"}]}
    # No real model says this when it is wanted.
    answer = {"body": f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", "content_type": "text/event-stream"}
    page.route("**/v1/completions", lambda route: route.fulfill(**answer))
    send(page, HOSTILE)
    until(page, ".tokens", HOSTILE)
    until(page, ".prompt", HOSTILE)
    page.locator(".token").hover()
    until(page, "#choices li:nth-child(2) code", "<b>bold</b>")
    assert page.locator("img").count() == 1  # the page's own
    assert page.locator("#choices b").count() == 0 and page.title() != "taken"


def test_the_keyboard_is_enough(server, open_page):
    page = open_page(server.address)
    page.focus("#prompt")
    page.keyboard.press("Control+A")
    page.keyboard.type("The king")
    page.keyboard.press("Control+Enter")
    until(page, ".state", re.compile("^ended"))
    focused = "() => document.activeElement.textContent"
    tokens = page.locator(".token").all_text_contents()
    for _ in range(5):  # max_tokens, temperature, seed, Send, and the answer's tokens
        page.keyboard.press("Tab")
    assert page.evaluate(focused) == tokens[0] and page.locator("#choices").is_visible()
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused) == tokens[1]
    page.keyboard.press("End")
    assert page.evaluate(focused) == tokens[-1]
    page.keyboard.press("Escape")
    assert page.locator("#choices").is_hidden()


def test_a_phone_has_no_sideways_scroll(server, open_page):
    page = open_page(server.address, viewport={"width": 375, "height": 700}, has_touch=True)
    send(page, "A_word_that_has_no_end" * 9, max_tokens=100)
    until(page, ".state", re.compile("^ended"))
    assert page.evaluate("() => document.documentElement.scrollHeight") > 1000
    page.evaluate("() => scrollTo(0, 0)")
    box = page.locator("aside .figures").bounding_box()
    assert box["y"] + box["height"] <= 700, "the engine's figures are out of sight"
    page.locator(".token").last.tap()
    assert page.locator("#choices").is_visible()
    assert page.evaluate("() => document.documentElement.scrollWidth") == 375


def test_the_key_is_asked_for_and_a_server_that_is_gone_is_told(open_page):
    with running_server("--api-key", "secret") as server:
        page = open_page(server.address)  # the page and its figures need no key
        assert page.locator("#key-field").is_hidden()
        send(page, "Once", max_tokens=5)
        until(page, ".state", re.compile("needs an API key"))
        page.fill("#key", "secret")
        send(page, "Once", max_tokens=5)
        until(page, "article:first-child .count", "5")
        send(page, "Once", max_tokens=1000)
        until(page, "article:first-child .count", re.compile(r"\d\d"))
    until(
        page,
        "article:first-child .state",
        re.compile("^The (server does not answer|stream broke off)|the server is shutting down"),
    )
    until(page, "#gone", re.compile("^No answer from the server"))
    send(page, "Once", max_tokens=5)
    until(page, "article:first-child .state", re.compile("^The server does not answer"))


def test_the_fields_of_the_calls_are_told(server, browser):
    page = browser.new_page()
    page.goto(f"{server.address}/docs")
    until(page, "h2 >> nth=0", "POST /v1/completions")
    assert "max_tokensinteger or null16" in page.locator("table").first.text_content()
    assert page.locator("h2").count() == 5
    page.close()
