"""The built page, served on this machine, and Chromium on it; what Python computes with."""

import threading
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from filelock import FileLock

from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.model import Transformer
from web.build import build
from web.on_page import tales
from web.serve import make_server


@pytest.fixture(scope="session")
def tok() -> BPETokenizer:
    return tales()[1]


@pytest.fixture(scope="session")
def model() -> Transformer:
    return tales()[0]


@pytest.fixture(scope="session")
def site(tmp_path_factory, worker_id):
    """The folder of the page, built once for all workers: who comes first builds it, the others wait."""
    if worker_id == "master":
        return build(tmp_path_factory.mktemp("web"))
    folder = tmp_path_factory.getbasetemp().parent / "web"
    with FileLock(f"{folder}.lock"):
        if not (folder / "done").exists():
            build(folder)
            (folder / "done").touch()
    return folder / "site"


@pytest.fixture(scope="session")
def address(site):
    """The address of a server for it."""
    with make_server(0, site) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture
def open_page(browser, address) -> Callable:
    """open_page("tokens") shows a page of the site, open_page(None) none yet. Complaints in the console and requests to other hosts fail the test."""
    complaints, contexts = [], []

    def heard(request):
        if urlsplit(request.url).scheme in ("http", "https") and not request.url.startswith(address):
            complaints.append(f"a request to {request.url}")

    def open_one(name: str | None = "index", **wishes):
        usual = {"viewport": {"width": 1000, "height": 900}, "reduced_motion": "reduce"}
        contexts.append(browser.new_context(**usual | wishes))
        page = contexts[-1].new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("request", heard)
        if name is not None:
            page.goto(f"{address}{name}.html")
        return page

    open_one.complaints = complaints
    yield open_one
    for context in contexts:
        context.close()
    assert not complaints


@pytest.fixture
def piece_on(open_page) -> Callable:
    """piece_on("tokens", "tokens") opens a page and waits until its piece is alive: the page, and the piece on it."""

    def open_piece(page_name: str, piece: str, **wishes):
        page = open_page(page_name, **wishes)
        place = page.locator(f'[data-piece="{piece}"]')
        place.scroll_into_view_if_needed()
        page.wait_for_selector(f'[data-piece="{piece}"][data-alive]')
        return page, place

    return open_piece


@pytest.fixture
def open_piece(open_page, tmp_path) -> Callable:
    """open_piece(piece) shows what a notebook would, with the network off: everything is inside."""

    def open_one(piece):
        file = tmp_path / f"{piece.module}.html"
        file.write_text(f'<!doctype html><meta charset="utf-8">{piece.fragment()}', encoding="utf-8")
        page = open_page(None, offline=True)
        page.goto(file.as_uri())
        page.wait_for_selector("[data-piece][data-alive] > *")
        return page

    return open_one
