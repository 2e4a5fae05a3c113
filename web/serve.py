"""Shows the page: python web/serve.py, or `lab web`. A static server for this machine alone, which first builds the page if it is missing."""

import re
import sys
import webbrowser
from collections.abc import Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.options import Parser, whole
from labkit.terminal import run

WEB = Path(__file__).resolve().parent
SITE = WEB / "build" / "site"


class Handler(SimpleHTTPRequestHandler):
    """Serves files without a log. The types of JavaScript and WebAssembly do not depend on the system."""

    protocol_version = "HTTP/1.1"  # a connection serves many files
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {
        ".js": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, format: str, *args: object) -> None:
        pass

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send the site's own page for an address that does not exist."""
        page = Path(self.directory, "404.html")
        if code == 404 and page.is_file():
            # Its links are relative, and the address may be in a folder. A <base> would change "#text" as well.
            text = re.sub(r'(href|src)="(?=\w)(?!\w+:)', r'\1="/', page.read_text(encoding="utf-8"))
            self.error_message_format = text.replace("%", "%%")
        super().send_error(code, message, explain)

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-cache")  # a page that was built again is loaded again
        super().end_headers()


class Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error, but not a browser that leaves a page before all files have arrived."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def make_server(port: int, site: Path = SITE) -> Server:
    """Return a server for the built page. Port 0: any free port.

    Raises:
        LabError: the port is taken.
    """
    try:
        return Server(("127.0.0.1", port), partial(Handler, directory=site))
    except OSError as error:
        raise LabError(
            f"port {port} cannot be used ({error.strerror}): choose another with --port, or 0 for any free port"
        ) from None


def serve(argv: Sequence[str] | None = None) -> int:
    parser = Parser(
        prog="lab web",
        description="Shows the course as a web page with a model that computes in your browser.",
    )
    parser.add_argument(
        "--port", type=whole(0, 65535), default=8080, help="0: any free port (default: %(default)s)"
    )
    parser.add_argument("--no-browser", action="store_true", help="only serve; the address is printed")
    parser.add_argument("--build", action="store_true", help="build the page again first")
    args = parser.parse_args(argv)
    if args.build or not (SITE / "index.html").is_file():
        from web.build import build

        print("building the page: some seconds", flush=True)
        build()
    with make_server(args.port) as server:
        address = f"http://127.0.0.1:{server.server_port}/"
        print(f"the page is at {address}  (Ctrl-C ends it)", flush=True)
        if not args.no_browser:
            webbrowser.open(address)
        server.serve_forever()
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    return run(lambda: serve(argv))


if __name__ == "__main__":
    raise SystemExit(main())
