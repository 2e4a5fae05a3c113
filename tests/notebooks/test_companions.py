"""The companion notebooks as they are shipped: what is in their outputs, and what must not be."""

import ast
import json
import re
import string

import pytest

from exercises.judging.registry import exercises_of
from exercises.publishing.build_notebooks import STUDENT, companions, read_notebook, written_in
from labkit.catalog import SCRIPTS
from labkit.paths import ROOT
from notebooks.widgets.questions import QUESTIONS
from web.pieces.piece import BLANK, HOW_TO_RUN, piece_in

SOURCES = companions()
PHASES = tuple(SCRIPTS)
each_notebook = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)


def outputs_of(source):
    """(cell, output) of every code cell that was run."""
    for cell in read_notebook(source).cells:
        for output in cell.get("outputs", ()):
            yield cell, output


def texts_of(output):
    """All texts of an output; pictures are left out."""
    if output.output_type == "stream":
        yield output.text
    for kind, data in output.get("data", {}).items():
        if not kind.startswith("image/"):
            yield data if isinstance(data, str) else json.dumps(data)


@pytest.fixture(autouse=True)
def skip_where_a_learner_works(request, being_worked_in):
    source = request.node.callspec.params.get("source") if hasattr(request.node, "callspec") else None
    if source is not None and source.stem in being_worked_in:
        pytest.skip("you work in this notebook")


@each_notebook
def test_it_was_run_and_nothing_went_wrong(source):
    nb = read_notebook(source)
    assert not written_in(nb), "cells have changed since: make companions"
    cells = [c for c in nb.cells if c.cell_type == "code"]
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
def test_it_has_a_piece_of_today_with_a_text_for_where_no_script_runs(source):
    shown = []
    for _, output in outputs_of(source):
        page = output.get("data", {}).get("text/html", "")
        if piece := piece_in(page):
            assert page == BLANK + piece.fragment(), f"{piece.module}.js has changed: run `make notebooks`"
            assert HOW_TO_RUN in piece.fallback and piece.fallback.count("\n") >= 3
            shown.append(piece.module)
    assert shown


@each_notebook
def test_questions_are_asked_before_they_are_answered(source):
    """The question's name is in the notebook, its answer is not; a text's figures are all given."""
    questions = QUESTIONS[source.stem]
    asked = {}
    for cell in read_notebook(source).cells:
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


def is_after_guess(cell):
    return "after-guess" in cell.metadata.get("tags", ())


@each_notebook
def test_outputs_that_would_tell_an_answer_are_folded(source):
    """Of a folded one JupyterLab shows the first line that is not empty, of HTML if there is any, else of the text."""
    cells = read_notebook(source).cells
    folded = [cell for cell in cells if cell.metadata.get("jupyter", {}).get("outputs_hidden")]
    assert folded and folded == [*filter(is_after_guess, cells)]
    assert "folded until you run" in " ".join(cells[0].source.split()), "the reader is told"
    for cell in folded:
        first = cell.outputs[0]
        data = first.get("data", {})
        text = data.get("text/html") or data.get("text/plain") or first.get("text")
        line = next(line for line in text.split("\n") if line)
        assert len(line) < 60 and not re.search(r"[\d<]", line), line
    for above, below in zip(cells, cells[1:]):
        if below.cell_type == "code" and "reveal(" in above.source and "reveal(" not in below.source:
            assert is_after_guess(below), f"give it the tag after-guess: {below.source[:60]!r}"


@each_notebook
def test_no_open_output_tells_an_answer(source):
    """Answers of three figures or more, and lists: shorter ones may stand anywhere by chance."""
    open_texts, answers = [], []
    for cell, output in outputs_of(source):
        if "reveal(" in cell.source:
            answers += re.findall(
                r"the answer without a guess</summary><b>([\d.,\s]+)", "".join(texts_of(output))
            )
        elif not is_after_guess(cell):
            # Of a piece only what is read: not its code and data.
            open_texts += [text.split("<script>")[0] for text in texts_of(output)]
    assert len(answers) == len(QUESTIONS[source.stem])
    for answer in (a.strip() for a in answers):
        if len(re.sub(r"\D", "", answer)) >= 3:
            told = re.compile(rf"(?<![\d.,]){re.escape(answer)}(?![\d]|[.,]\d)")
            assert not [t for t in open_texts if told.search(t)], answer


@each_notebook
def test_it_ends_with_the_exercises_of_its_phase(source):
    last = read_notebook(source).cells[-1].source
    linked = re.findall(r"^- \[(.+)\]\(exercises/(\w+)\.ipynb\)$", last, re.MULTILINE)
    assert [name for _, name in linked] == list(exercises_of(PHASES.index(source.stem) + 1))
    for title, name in linked:
        heading = read_notebook(STUDENT / f"{name}.ipynb").cells[0].source.splitlines()[0]
        assert f"# {title}" == heading
