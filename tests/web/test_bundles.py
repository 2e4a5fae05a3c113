"""A piece in a notebook is one text: its module with all that it imports."""

import re

import pytest

from web.on_page import PIECES
from web.pieces.piece import FOLDER, Piece, bundle, piece_in

MODULES = sorted(p.stem for p in FOLDER.glob("*.js"))


@pytest.mark.parametrize("module", MODULES)
def test_nothing_is_left_to_import_and_no_name_stands_twice(module):
    code = bundle(FOLDER / f"{module}.js")
    assert not re.search(r"^import ", code, re.MULTILINE)
    names = re.findall(r"^(?:export )?(?:async )?(?:const|let|function|class) (\w+)", code, re.MULTILINE)
    assert len(names) == len(set(names))
    if module in PIECES:
        assert code.count("export default { render };") == 1 and code.count("export ") == 1


def test_a_piece_in_a_notebook_gets_the_module_of_today():
    piece = Piece("splits", {"a": [1, "</script>"]}, "text with <b> & more")
    assert piece.fragment().count("</script>") == 1  # nothing in the data ends the script early
    assert "text with &lt;b&gt; &amp; more" in piece.fragment()  # a code host, where no script runs, shows it
    old = piece.fragment().replace("makeSplits", "old")
    assert piece_in(" \n" + old).fragment() == piece.fragment()
    assert piece_in("<p>no piece</p>") is None
