"""Notebooks that install the course themselves."""

import nbformat
import pytest

from exercises.publishing import online
from exercises.publishing.build_notebooks import companions, read_notebook
from labkit.errors import LabError
from labkit.paths import ROOT

HERE = "https://github.com/you/inference-lab"


def test_each_companion_gets_a_badge_and_a_cell_that_installs(tmp_path):
    written = online.publish(HERE, tmp_path)
    page = (tmp_path / "README.md").read_text()
    for source in companions():
        nb = nbformat.read(tmp_path / f"{source.stem}.ipynb", as_version=4)
        nbformat.validate(nb)
        badge, install = nb.cells[0].source, next(c for c in nb.cells if c.cell_type == "code")
        assert f"/github/you/inference-lab/blob/main/notebooks/online/{source.stem}.ipynb" in badge
        assert badge in page and HERE in install.source
        assert not any(c.get("outputs") for c in nb.cells)
        own = [c.source for c in nb.cells if c.id not in ("badge", "install")]
        assert own == [c.source for c in read_notebook(source).cells]
    assert len(written) == len(companions()) + 1


def test_where_the_course_is_installed_the_cell_does_nothing(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("it installs"))
    exec(online.INSTALL.format(repository=HERE), {})


@pytest.mark.parametrize(
    "address", ["", "inference-lab", "https://example.org/a/b", "https://github.com/you"]
)
def test_an_address_that_colab_cannot_open(address, tmp_path):
    with pytest.raises(LabError, match="is no address like"):
        online.publish(address, tmp_path)
