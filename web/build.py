"""Builds the page: python -m web.build. Static files in web/build/site, for any web server.

1. Sections are put together from the chapters (texts.py), and written where Sphinx reads.
2. Sphinx makes pages of them (conf.py, extension.py, theme/).
3. The code and data for the reader's browser are put beside them: the pieces with their data, the models with their weights.
"""

import html
import json
import re
import shutil
import sys
from pathlib import Path

import wasmtime
from PIL import Image
from sphinx.cmd.build import main as sphinx

from labkit.catalog import SCRIPTS
from labkit.claims import CLAIMS, SOURCES, reference_run
from labkit.errors import LabError
from labkit.models import find_model
from labkit.paths import ROOT, short
from phase1_tokens_embeddings.tokens import BPETokenizer
from web.glossary import read_glossary
from web.on_page import PIECES, piece_of
from web.pieces.tokens import tokenizer_data
from web.texts import WEB, Linker, page_of_file, read_contents, text_of

FOLDER = WEB / "build"
MODELS = ("tales", "tales-draft")
LEDGER = """# The ledger of claims

The course grew out of articles that explain LLM inference with many figures, and checks each of them. *Reproduced*: the course's
measurement agrees within the tolerance that the script states. *Corrected*: it does not, and the script says why. *Differs here*:
a time that depends on the machine. `lab claims` shows the same for your machine, once you have run the scripts.
"""
LANGUAGES = {".py": "python", ".js": "javascript", ".json": "json", ".yml": "yaml", ".toml": "toml"}


def write_texts(source: Path) -> dict[str, str]:
    """Write the input of Sphinx: the sections, the other pages, and the files that these link to.

    Returns:
        the pictures and notebooks that the texts need: file of the course -> file of the page.
    """
    shutil.rmtree(source, ignore_errors=True)

    def write(name: str, text: str) -> None:
        file = source / f"{name}.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n", encoding="utf-8")

    contents = read_contents()
    linker = Linker(contents)
    names = []
    for section in contents.sections:
        text = "\n\n".join(linker.rewrite(text, file) for file, text in text_of(section))
        write(section.name, f"# {section.title}\n\n{text}")
        names.append(section.name)
    for page in sorted((WEB / "pages").glob("*.md")):
        write(page.stem, linker.rewrite(page.read_text(encoding="utf-8"), f"web/pages/{page.name}"))
    write("further-reading", "# Further reading\n\n" + further_reading(linker))
    write("ledger", ledger_page())
    write("glossary", glossary_page())
    names += ["recap", "further-reading", "ledger", "glossary"]
    with (source / "index.md").open("a", encoding="utf-8") as index:
        index.write("\n\n```{toctree}\n:hidden:\n\n" + "\n".join(names) + "\n```\n")
    shown: set[str] = set()
    while remaining := [path for path in linker.files if path not in shown]:
        for path in remaining:  # a Markdown file among them may link to more
            write(page_of_file(path), "---\norphan: true\nnosearch: true\n---\n\n" + file_page(linker, path))
        shown |= {*remaining}
    return linker.copies


def write_copies(source: Path, copies: dict[str, str]) -> None:
    """Copy pictures and notebooks to the places that the texts link to."""
    for path, copy in copies.items():
        (source / copy).parent.mkdir(parents=True, exist_ok=True)
        if copy.endswith(".webp"):  # the same pixels in half the bytes
            Image.open(ROOT / path).save(source / copy, lossless=True, method=4)
        else:
            shutil.copy(ROOT / path, source / copy)


def file_page(linker: Linker, path: str) -> str:
    """Return a page that shows a file of the course: Markdown as text, other files as code, a folder as a list."""
    file = ROOT / path
    if file.is_dir():
        inside = "\n".join(f"- `{child.name}`" for child in sorted(file.iterdir()) if child.is_file())
        return f"# `{path}/`\n\n{inside}"
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return linker.rewrite(text, path)
    fence = "`" * 8
    return f"# `{path}`\n\n{fence}{LANGUAGES.get(file.suffix, 'text')}\n{text}\n{fence}"


def further_reading(linker: Linker) -> str:
    """Return the recommendations at the end of each phase's README."""
    parts = []
    for number, readme in enumerate(sorted(ROOT.glob("phase*/README.md")), 1):
        found = re.search(
            r"\*\*Further reading\.\*\* (.+?)(Then \[Phase|\n## |\Z)",
            readme.read_text(encoding="utf-8"),
            re.DOTALL,
        )
        if found is None:
            raise ValueError(f"{readme}: no **Further reading.** below its key takeaways")
        text = linker.rewrite(found[1], readme.relative_to(ROOT).as_posix())
        parts.append(f"## Phase {number}\n\n{text}")
    return "\n\n".join(parts)


def glossary_page() -> str:
    lines = ["# Glossary\n"]
    entries = read_glossary()
    firsts = [entry.names[0] for entry in entries]
    for entry in entries:
        where = f" (in phase {entry.file[5]})" if firsts.count(entry.names[0]) > 1 else ""
        lines.append(f"({entry.key})=\n**{', '.join(entry.names)}**{where}: {entry.meaning}\n")
    return "\n".join(lines)


def ledger_page() -> str:
    """Return the claims of all sources beside the measurements of the reference run, as Markdown."""
    run = reference_run()
    lines = [LEDGER, f"Measured on {run['machine']}, {run['when']}.\n"]
    lines += [f"- {letter}: {title}" for letter, title in SOURCES.items()]
    for number, phase in enumerate(SCRIPTS, 1):
        lines += [f"\n## Phase {number}\n", "| claim | source | verdict | measured |", "|---|---|---|---|"]
        for claim in CLAIMS[phase]:
            cells = (claim.says, claim.source, *run["claims"].get(claim.id, ("not measured", "")))
            lines.append("| " + " | ".join(html.escape(cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def run_sphinx(folder: Path) -> None:
    """Raises: LabError: Sphinx found a mistake; what it says is on the screen."""
    shutil.rmtree(folder / "site", ignore_errors=True)
    places = ["-c", WEB, "-d", folder / "doctrees", folder / "source", folder / "site"]
    if sphinx(["-q", "-W", "-E", *map(str, places)]) != 0:
        raise LabError("the page was not built: see the lines above")


def write_pieces(site: Path) -> None:
    """Copy the modules, and write the data of each piece beside them."""
    for folder in ("pieces", "model"):
        (site / folder).mkdir()
        for module in sorted((WEB / folder).glob("*.js")):
            shutil.copy(module, site / folder)
    for name in PIECES:
        write_json(site / "pieces" / f"{name}.json", piece_of(name).data)


def write_models(site: Path) -> None:
    """Write the configuration, weights and vocabulary of the models, and the machine code of their linear layers."""
    code = wasmtime.wat2wasm((WEB / "model" / "linear.wat").read_text(encoding="utf-8"))
    (site / "model" / "linear.wasm").write_bytes(code)
    for name in MODELS:
        folder = site / "model" / name
        folder.mkdir()
        for file in ("config.json", "model.safetensors"):
            shutil.copy(find_model(name) / file, folder)
        tok = BPETokenizer.from_file(find_model(name) / "tokenizer.json")
        write_json(folder / "tokenizer.json", tokenizer_data(tok))


def write_json(file: Path, data: object) -> None:
    file.write_text(json.dumps(data, separators=(",", ":"), ensure_ascii=False), encoding="utf-8")


def build(folder: Path = FOLDER) -> Path:
    """Build the page, and return its folder.

    Raises:
        LabError, ValueError: a mistake in a text or in the table; the message, or the screen, says where.
    """
    write_copies(folder / "source", write_texts(folder / "source"))
    run_sphinx(folder)
    write_pieces(folder / "site")
    write_models(folder / "site")
    return folder / "site"


if __name__ == "__main__":
    try:
        print(f"the page is in {short(build())}")
    except (LabError, ValueError) as error:
        sys.exit(f"error: {error}")
