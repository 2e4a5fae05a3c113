"""A piece in JupyterLab itself: its keys are the piece's, and the notebook's stay the notebook's."""

import json
import os
import subprocess
import sys
import time

import nbformat
import pytest

from labkit.paths import ROOT

SECONDS = 120  # a cold start of JupyterLab beside other tests


@pytest.fixture
def jupyter_lab(tmp_path):
    """The address of a JupyterLab of its own that serves `tmp_path`."""
    pytest.importorskip("jupyterlab", reason="needs JupyterLab: pip install jupyter")
    home = {f"JUPYTER_{x}_DIR": str(tmp_path / f".{x}") for x in ("CONFIG", "RUNTIME")}
    options = ["--no-browser", "--allow-root", "--port=0", "--IdentityProvider.token="]
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *options, f"--ServerApp.root_dir={tmp_path}"],
        env=os.environ
        | home
        | {"PYTHONPATH": str(ROOT), "JUPYTERLAB_SETTINGS_DIR": str(tmp_path / ".settings")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + SECONDS
        # (The file is there for a moment before anything stands in it.)
        while not (found := [f for f in (tmp_path / ".RUNTIME").glob("jpserver-*.json") if f.stat().st_size]):
            assert server.poll() is None and time.monotonic() < end, "JupyterLab does not start"
            time.sleep(0.1)
        yield json.loads(found[0].read_text())["url"]
    finally:
        server.terminate()
        server.wait(timeout=30)


def test_the_keys_of_a_piece_in_jupyterlab(browser, jupyter_lab, tmp_path):
    cells = ["from notebooks.widgets import splits_piece\nsplits_piece()", "1 + 1", "2 + 2"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(book, tmp_path / "piece.ipynb")
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()
    page.set_default_timeout(SECONDS * 1000)
    page.goto(f"{jupyter_lab}lab/tree/piece.ipynb?reset")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell .jp-InputArea-editor")
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    chosen = (
        "[...document.querySelectorAll('.jp-Cell')].findIndex(c => c.classList.contains('jp-mod-active'))"
    )

    page.locator(".jp-CodeCell .jp-InputArea-editor").first.click()
    page.keyboard.press("Control+End")
    page.keyboard.type("  # mine")
    page.keyboard.press("Shift+Enter")
    slider = page.locator(".spl input[type=range]").first
    slider.click()
    before = int(slider.input_value())
    page.keyboard.press("ArrowLeft")  # JupyterLab would choose another cell
    page.wait_for_function("([s, v]) => Number(s.value) === v", arg=[slider.element_handle(), before - 1])
    # JupyterLab would delete the cell, merge it with the next, undo what was typed into it.
    for key in ("d", "d", "Shift+M", "Control+Z"):
        page.keyboard.press(key)
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("([s, v]) => Number(s.value) === v", arg=[slider.element_handle(), before - 2])
    assert page.locator(".jp-Cell").count() == len(cells) and page.evaluate(chosen) == 0
    assert "# mine" in page.locator(".jp-CodeCell .jp-InputArea-editor").first.inner_text()

    page.keyboard.press("Shift+Enter")
    page.wait_for_function(f"{chosen} === 1")
    context.close()
