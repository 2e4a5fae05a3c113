"""A page for an interactive piece."""

import pytest


@pytest.fixture
def open_piece(browser, tmp_path):
    """open_piece(piece) shows its page, with the network off; complaints of the page fail the test."""
    complaints = []
    context = browser.new_context(viewport={"width": 1000, "height": 900}, offline=True)

    def open_page(piece):
        file = tmp_path / f"{piece.module}.html"
        file.write_text(f'<!doctype html><meta charset="utf-8">{piece.fragment()}', encoding="utf-8")
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
