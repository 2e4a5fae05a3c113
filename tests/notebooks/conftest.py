"""A browser without a window, for the interactive pieces."""

import shutil

import pytest

CHROMIUM = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="session")
def browser():
    """Chromium, or a skip that says what is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with playwright.sync_playwright() as p:
        try:
            chromium = p.chromium.launch(executable_path=path, args=CHROMIUM)
        except playwright.Error as error:
            pytest.skip(f"{path} does not start: {str(error).splitlines()[0]}")
        yield chromium
        chromium.close()


@pytest.fixture
def open_piece(browser, tmp_path):
    """open_piece(piece) shows its page, with the network off; complaints of the page fail the test."""
    complaints = []
    context = browser.new_context(viewport={"width": 1000, "height": 900}, offline=True)

    def open_page(piece):
        file = tmp_path / f"{piece.module}.html"
        file.write_text(piece.page("A piece"), encoding="utf-8")
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        # A file asks for nothing else: everything is inside.
        page.on(
            "request", lambda r: complaints.append(r.url) if not r.url.startswith(("file:", "blob:")) else 0
        )
        page.goto(file.as_uri())
        page.wait_for_selector("[data-piece][data-alive] > *")
        return page

    yield open_page
    context.close()
    assert not complaints
