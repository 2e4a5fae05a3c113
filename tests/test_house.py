"""Rules of the house that the import linter cannot express (the others stand in pyproject.toml)."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PHASES = sorted(ROOT.glob("phase*"))
SCRIPTS = {f"{phase.name}.{s.stem}" for phase in PHASES for s in phase.glob("*.py") if s.stem != "__init__"}
COMPANIONS = [ROOT / "notebooks" / f"{phase.name}.ipynb" for phase in PHASES]


def sources(*folders: str) -> list[Path]:
    return sorted(f for folder in folders for f in (ROOT / folder).rglob("*.py"))


def code_of(file: Path) -> ast.Module:
    """The code of a module, or of the cells of a notebook."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        text = "\n".join("".join(cell["source"]) for cell in cells)
    return ast.parse(text)


def imports(file: Path) -> Iterator[str]:
    """Modules that a file names in its imports, wherever they stand."""
    for node in ast.walk(code_of(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def test_nothing_imports_a_script():
    files = [*sources(*(phase.name for phase in PHASES), "labkit", "exercises", "notebooks"), *COMPANIONS]
    found = {str(f.relative_to(ROOT)): SCRIPTS.intersection(imports(f)) for f in files}
    assert len(SCRIPTS) > 25 and {name: scripts for name, scripts in found.items() if scripts} == {}


def private_uses(file: Path) -> Iterator[str]:
    """`x._name` where x is not the object itself. `_repr_html_` and its like are IPython's public protocol."""
    for node in ast.walk(code_of(file)):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.endswith("_"):
            continue
        if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            continue
        if (text := ast.unparse(node)) != "os._exit":  # documented, the name notwithstanding
            yield f"{file.relative_to(ROOT)}:{node.lineno} {text}"


def test_exercises_and_notebooks_use_public_names_only():
    files = [*sources("exercises", "notebooks"), *COMPANIONS]
    assert [use for file in files for use in private_uses(file)] == []
