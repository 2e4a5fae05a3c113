"""An interactive piece: one ES module, the data it works on, and a text for places where nothing runs.

The module exports `render({ data, el })`. The same file serves in three places:

- in a notebook: the module and its data lie in the output. No network, no kernel;
- on the page (web/README.md): there it also gets `lm`, the language model that runs in the browser;
- where scripts are not run, as on a code host: the fallback.
"""

import hashlib
import html
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
BLANK = " \n"  # of an output that is folded JupyterLab still shows the first line; here nothing is seen in it
HOW_TO_RUN = "Run this cell to use it; this text stands in where no script runs."

_IMPORT = re.compile(r'^import \{[^}]*\} from "([^"]+)";\n', re.MULTILINE)

_FRAGMENT = re.compile(
    r'<div data-piece="(\w+)-[0-9a-f]+"><pre>([^<]*)</pre></div>\n<script>.*?\n  const data = ([^\n]*);\n',
    re.DOTALL,
)

_START = """
(() => {
  const data = %(data)s;
  const source = %(code)s;
  const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  import(address).then((module) => {
    document.querySelectorAll('[data-piece="%(mark)s"]:not([data-alive])').forEach((el) => {
      el.setAttribute("data-alive", "");
      el.innerHTML = "";
      module.default.render({ data, el });
    });
  });
})();
"""


@dataclass
class Piece:
    """An interactive piece with the data that Python has computed.

    Attributes:
        module: name of the ES module in this folder, without ".js".
        data: the numbers that it shows; anything that JSON can hold.
        fallback: the same in text, for places where no script runs.

    As the last line of a cell, or through `display`, it appears in the notebook.
    """

    module: str
    data: dict[str, Any]
    fallback: str

    @property
    def code(self) -> str:
        """The ES module after all that it imports: a notebook's output holds no second file."""
        return bundle(FOLDER / f"{self.module}.js")

    def fragment(self) -> str:
        """Return HTML that works by itself: the fallback, and a script that replaces it by the piece."""
        data, code = (json.dumps(x, separators=(",", ":")) for x in (self.data, self.code))
        mark = f"{self.module}-{hashlib.sha256((data + code).encode()).hexdigest()[:12]}"
        script = _START % {"data": _inside_script(data), "code": _inside_script(code), "mark": mark}
        return f'<div data-piece="{mark}"><pre>{html.escape(self.fallback)}</pre></div>\n<script>{script}</script>'

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {"text/plain": self.fallback, "text/html": BLANK + self.fragment()}


def in_words(use: str, *paragraphs: str | Iterable[str]) -> str:
    """Return a fallback: how the piece is used, then paragraphs, each a text or a list of lines."""
    texts = (p if isinstance(p, str) else "\n".join(p) for p in paragraphs)
    return "\n\n".join([f"{use} {HOW_TO_RUN}", *texts])


def piece_in(page: str) -> Piece | None:
    """Return the piece in the HTML of `page`, with its current module; None if there is none."""
    found = _FRAGMENT.search(page)
    if found is None:
        return None
    module, fallback, data = found.groups()
    return Piece(module, json.loads(data), html.unescape(fallback))


def bundle(module: Path, done: set[Path] | None = None) -> str:
    """Return a module and, before it, all that it imports, each once, as one text. So no two may define the same name."""
    done = set() if done is None else done
    done.add(module)
    text = module.read_text(encoding="utf-8")
    imported = [(module.parent / path).resolve() for path in _IMPORT.findall(text)]
    before = [
        re.sub(r"^export (?!default)", "", bundle(m, done), flags=re.M) for m in imported if m not in done
    ]
    return "".join([*before, _IMPORT.sub("", text)])


def _inside_script(text: str) -> str:
    """Return JSON for the inside of a <script>: nothing in it can end the script."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
