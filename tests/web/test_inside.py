"""A head number by number, and the drawers of an MLP: the page computes what Python does, on a text of the reader's."""

import pytest

from phase2_attention_kvcache.story.attention_by_hand import EMBEDDINGS, W_K, W_Q, W_V, attention_by_hand
from tests.web.clicking import expect, shown
from web.pieces.drawers import OPEN, handed_out, opened_by
from web.pieces.head import head_of

TEXT = "The queen went to the old"


@pytest.fixture
def ids(tok) -> list[int]:
    return tok.encode(TEXT)


def rows_of(piece) -> list[tuple[float, float, float]]:
    """Of each token that is seen: score, score over the root, weight."""
    rows = piece.locator("tr[data-token]").all()
    return [tuple(float(shown(row, name)) for name in ("score", "scaled", "weight")) for row in rows]


def check(piece, steps, query: int, digits: float) -> None:
    wanted = zip(steps.raw[query], steps.scaled[query], steps.weights[query], strict=True)
    assert rows_of(piece) == [pytest.approx(row, abs=digits) for row in list(wanted)[: query + 1]]
    taken = [float(x) for x in shown(piece, "out").replace("…", "").split()]
    assert taken == pytest.approx(steps.output[query][: len(taken)], abs=digits)
    assert shown(piece, "sum of weights") == "1.0000"


def test_a_head_number_by_number(piece_on, model, ids):
    page, piece = piece_on("attention", "head")
    vectors = [list(vector) for vector in EMBEDDINGS]
    for word, place, value in [(0, 0, 0), (2, 1, 3), (1, 2, -1)]:  # the first changes nothing
        piece.get_by_label(f"{('I', 'love', 'dogs')[word]}, number {place + 1}").fill(str(value))
        vectors[word][place] = value
        steps = attention_by_hand(vectors, W_Q, W_K, W_V)
        for query in (2, 0, 1):
            piece.get_by_label("who looks").select_option(str(query))
            check(piece, steps, query, 6e-4)
    piece.locator('tr[data-token="1"] button').focus()
    page.keyboard.press("Enter")  # its products, added up
    assert float(shown(piece, "score of products")) == pytest.approx(steps.raw[1][1])

    piece.get_by_label("whose numbers").select_option("model")
    piece.get_by_label("text", exact=True).fill(TEXT)
    expect(piece.locator('tr[data-token="1"] button')).to_contain_text("queen")
    assert piece.locator("tr[data-token]").count() == len(ids)
    for layer, head, query in [(0, 0, len(ids) - 1), (3, 2, 4), (5, 3, 1)]:
        piece.get_by_label("layer").select_option(index=layer)  # (a value "4" would match the label "4", too)
        piece.get_by_label("head", exact=True).select_option(index=head)
        piece.get_by_label("who looks").select_option(str(query))
        check(piece, head_of(model, ids, layer, head), query, 2e-3)
    assert piece.locator(".products tr").count() == 1 + 64


def test_drawers_that_open_on_a_text_of_the_readers(piece_on, model, ids, tok):
    page, piece = piece_on("stacking", "drawers")
    piece.get_by_label("text", exact=True).fill(TEXT)
    page.wait_for_function(f"document.querySelectorAll('.dra .text button').length === {len(ids)}")
    values = opened_by(model, ids)
    for layer, token in [(4, len(ids) - 1), (0, 2), (5, 3)]:
        piece.get_by_label("layer").select_option(index=layer)
        piece.locator(f'[data-do="token {token}"]').click()
        mine = values[layer][token]
        best = handed_out(model, layer, mine)[:3]  # further down two may give as much but for the last digit
        rows = piece.locator("[data-drawer]").all()[:3]
        for row, (drawer, _) in zip(rows, best, strict=True):
            expect(row).to_have_attribute("data-drawer", str(drawer))
        for row, (drawer, raised) in zip(rows, best, strict=True):
            words = [tok.decode([i]).replace(" ", "␣") for i in raised[:3]]
            assert row.locator(".raises b").all_text_contents()[:3] == words
            assert float(shown(row, "value")) == pytest.approx(float(mine[drawer]), abs=6e-3)
        assert int(shown(piece, f"of them open (above {OPEN:g})")) == int((mine > OPEN).sum())
