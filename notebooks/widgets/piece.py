"""An interactive piece: one ES module, the data it works on, and a text for places where nothing runs.

The module exports anywidget's `render({ model, el })`. The same file serves in three places:

- in Jupyter with anywidget: a live widget; what the reader does arrives in `piece.state`;
- in any other notebook, and in an exported page: the module and its data lie in the output, and a model of a few
  lines stands in for the kernel. No network, no kernel;
- where scripts are not run, as on a code host: the fallback.
"""

import hashlib
import html
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

from notebooks.widgets.shown import BLANK

FOLDER = Path(__file__).resolve().parent
HOW_TO_RUN = "Run this cell to use it; this text stands in where no script runs."

# All that a piece asks of its model: get, set, save_changes, on.
_START = """
(() => {
  const data = %(data)s;
  const source = %(code)s;
  const heard = {};
  const values = { data, state: {} };
  const model = {
    get: (name) => values[name],
    set: (name, value) => { values[name] = value; (heard["change:" + name] || []).forEach((f) => f()); },
    on: (name, f) => { (heard[name] = heard[name] || []).push(f); },
    off: () => {},
    save_changes: () => {},
  };
  const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  import(address).then((module) => {
    document.querySelectorAll('[data-piece="%(mark)s"]:not([data-alive])').forEach((el) => {
      el.setAttribute("data-alive", "");
      el.innerHTML = "";
      module.default.render({ model, el });
    });
  });
})();
"""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>%(title)s</title>
<style>body { font: 15px/1.5 system-ui, sans-serif; margin: 24px auto; max-width: 960px; padding: 0 16px }</style>
</head><body><h1>%(title)s</h1>
%(fragment)s
</body></html>
"""


class Piece:
    """Something to click, fed by Python objects.

    Args:
        module: name of the ES module in this folder, without ".js".
        data: what it shows; anything that JSON can hold.
        fallback: the same in text, for places where no script runs.

    As the last line of a cell, or through `display`, it appears in the notebook.
    """

    def __init__(self, module: str, data: dict[str, Any], fallback: str) -> None:
        self.module = module
        self.data = data
        self.fallback = fallback
        self._live: Any = None

    @property
    def code(self) -> str:
        """The ES module, with what all of them share before it."""
        return "".join(
            (FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in ("common", self.module)
        )

    @property
    def state(self) -> dict[str, Any]:
        """What the reader did, as the module tells it; empty where the piece is not live."""
        return dict(self._live.state) if self._live is not None else {}

    def live(self) -> Any:
        """The piece as a widget of anywidget, one for each piece.

        Raises:
            ImportError: anywidget is not installed.
        """
        if self._live is None:
            import anywidget
            import traitlets

            class LivePiece(anywidget.AnyWidget):
                _esm = self.code
                data = traitlets.Dict().tag(sync=True)
                state = traitlets.Dict().tag(sync=True)

            self._live = LivePiece(data=self.data)
        return self._live

    def fragment(self) -> str:
        """HTML that works by itself: the fallback, and a script that puts the piece in its place."""
        data, code = (json.dumps(x, separators=(",", ":")) for x in (self.data, self.code))
        mark = f"{self.module}-{hashlib.sha256((data + code).encode()).hexdigest()[:12]}"
        script = _START % {"data": _inside_script(data), "code": _inside_script(code), "mark": mark}
        return f'<div data-piece="{mark}"><pre>{html.escape(self.fallback)}</pre></div>\n<script>{script}</script>'

    def page(self, title: str) -> str:
        """A whole page that needs neither kernel nor network."""
        return _PAGE % {"title": html.escape(title), "fragment": self.fragment()}

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": self.fallback, "text/html": BLANK + self.fragment()}
        if is_live():
            bundle |= self.live()._repr_mimebundle_()[0]
            bundle["text/plain"] = self.fallback
        return bundle


def is_live() -> bool:
    """Whether the piece can talk to this kernel: a Jupyter server started this kernel, and anywidget is here.

    A kernel that only executes a notebook writes the page instead: it works without a kernel.
    """
    return "JPY_SESSION_NAME" in os.environ and importlib.util.find_spec("anywidget") is not None


def _inside_script(text: str) -> str:
    """JSON that may stand inside a <script>: nothing in it can end the script."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
