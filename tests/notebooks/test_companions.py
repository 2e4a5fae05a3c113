"""The companion notebooks as they are shipped: what is in their outputs, and what must not be."""

import ast
import json
import re
import string

import pytest

from exercises.build_notebooks import companion_of, companion_sources, read_notebook, read_source
from labkit.paths import ROOT
from notebooks.widgets.piece import FOLDER, _inside_script
from notebooks.widgets.questions import QUESTIONS

SOURCES = companion_sources()
MODULES = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.js")}
PHASES = (
    "phase1_tokens_embeddings",
    "phase2_attention_kvcache",
    "phase3_paged_attention",
    "phase4_scheduler",
    "phase5_real_gpu",
)
each_notebook = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)


def outputs_of(source):
    """(cell, output) of every code cell that was run."""
    for cell in read_notebook(companion_of(source)).cells:
        for output in cell.get("outputs", ()):
            yield cell, output


def texts_of(output):
    """All texts of an output; pictures are left out."""
    if output.output_type == "stream":
        yield output.text
    for kind, data in output.get("data", {}).items():
        if not kind.startswith("image/"):
            yield data if isinstance(data, str) else json.dumps(data)


def test_there_is_one_for_each_phase():
    assert [source.stem for source in SOURCES] == list(PHASES)
    assert all((ROOT / name / "README.md").is_file() for name in PHASES)


@each_notebook
def test_it_was_run_and_nothing_went_wrong(source):
    cells = [c for c in read_notebook(companion_of(source)).cells if c.cell_type == "code"]
    run = [c.execution_count for c in cells if "gpu" not in c.metadata.get("tags", ())]
    assert run == list(range(1, len(run) + 1)), "from top to bottom, in a fresh kernel"
    assert not [o for _, o in outputs_of(source) if o.output_type == "error" or o.get("name") == "stderr"]


@each_notebook
def test_outputs_hold_nothing_of_this_machine(source):
    strange = re.compile(
        rf"{re.escape(str(ROOT))}|/(?:root|home|Users|tmp|work|usr)/|site-packages|at 0x[0-9a-f]{{6,}}|<[\w.]+ object"
    )
    for cell, output in outputs_of(source):
        for text in texts_of(output):
            found = strange.search(text)
            assert found is None, f"{found[0]!r} below {cell.source[:60]!r}"


@each_notebook
def test_its_size_is_fit_for_a_code_host(source):
    assert companion_of(source).stat().st_size < 1_500_000


@each_notebook
def test_it_has_a_piece_of_today_with_a_text_for_where_no_script_runs(source):
    shown = []
    for _, output in outputs_of(source):
        page = output.get("data", {}).get("text/html", "")
        if found := re.match(r'<div data-piece="(\w+)-[0-9a-f]+"><pre>([^<]+)</pre></div>\n<script>', page):
            module, fallback = found.groups()
            code = _inside_script(json.dumps(MODULES[module], separators=(",", ":")))
            assert f"const source = {code};" in page, f"{module}.js has changed: run `make notebooks`"
            assert "Run this cell" in fallback
            assert fallback.count("\n") >= 3
            shown.append(module)
    assert shown


def test_every_module_is_in_a_notebook():
    pages = "".join(text for source in SOURCES for _, o in outputs_of(source) for text in texts_of(o))
    assert {name for name in MODULES if f'data-piece="{name}-' in pages} == set(MODULES)


@each_notebook
def test_questions_are_asked_before_they_are_answered(source):
    """The question's name is in the notebook, its answer is not; a text's figures are all given."""
    questions = QUESTIONS[source.stem]
    asked = {}
    for cell in read_source(source, source.stem).cells:
        if cell.cell_type != "code" or "reveal(" not in cell.source:
            continue
        for call in ast.walk(ast.parse(cell.source)):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "reveal":
                asked[call.args[0].value] = {k.arg for k in call.keywords} - {"measured"}
                assert re.search(r"^guess = \.\.\.  # \S", cell.source, re.MULTILINE)
    assert set(asked) == set(questions)
    assert 3 <= len(asked) <= 9
    for name, (asks, why, _) in questions.items():
        fields = {field for text in (asks, why) for _, field, _, _ in string.Formatter().parse(text) if field}
        assert fields == asked[name], name


@each_notebook
def test_answers_stay_folded_until_somebody_guesses(source):
    boxes = [t for _, o in outputs_of(source) for t in texts_of(o) if "No guess yet" in t]
    assert len(boxes) == len(QUESTIONS[source.stem])
    for box in boxes:
        assert "<details><summary>" in box


def test_cells_for_a_gpu_show_only_what_was_measured():
    """Nothing of a card in the outputs unless one was there."""
    cells = [c for c in read_notebook(companion_of(SOURCES[-1])).cells if "gpu" in c.metadata.get("tags", ())]
    assert cells
    for cell in cells:
        assert "else:" in cell.source, "without a GPU it says so"
        assert "needs a GPU" in cell.source
