"""`lab web`: a small server for the built page."""

import socket
import threading
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from labkit.errors import LabError
from web.serve import make_server

# The links of a page for any address: relative ones begin at the top, those within the page and to other hosts stay.
FOUND = '<a href="index.html"> <script src="_static/page.js"> <a href="#text"> <a href="https://a.example">'
SENT = '<a href="/index.html"> <script src="/_static/page.js"> <a href="#text"> <a href="https://a.example">'


@pytest.fixture
def address(tmp_path):
    (tmp_path / "404.html").write_text(f"100% {FOUND}", encoding="utf-8")
    (tmp_path / "a.js").write_text("export const a = 1;", encoding="utf-8")
    (tmp_path / "a.wasm").write_bytes(b"\0asm")
    with make_server(0, tmp_path) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize("name, kind", [("a.js", "text/javascript"), ("a.wasm", "application/wasm")])
def test_modules_are_served_as_what_they_are(address, name, kind):
    with urlopen(address + name) as answer:
        assert answer.headers["Content-Type"] == kind and int(answer.headers["Content-Length"]) > 0


def test_only_for_an_unknown_address_the_sites_own_page_is_sent(address):
    for data, code, own in ((None, 404, True), (b"", 501, False)):  # GET, POST
        with pytest.raises(HTTPError) as answer:
            urlopen(address + "files/nothing.html", data)
        said = answer.value.read().decode()
        assert answer.value.code == code and (said == f"100% {SENT}") is own


@pytest.mark.parametrize("error, told", [(BrokenPipeError, False), (ZeroDivisionError, True)])
def test_a_browser_that_leaves_is_no_error(tmp_path, capsys, error, told):
    with make_server(0, tmp_path) as server:
        try:
            raise error
        except error:
            server.handle_error(None, ("127.0.0.1", 1))
    assert ("Traceback" in capsys.readouterr().err) is told


def test_a_port_that_is_taken_is_one_line(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(LabError, match=rf"port {port} cannot be used .*--port"):
            make_server(port, tmp_path)
