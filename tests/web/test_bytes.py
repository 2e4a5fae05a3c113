"""The way of a step's bytes: nothing is lost between the operations, and the page shows what Python computes."""

import pytest

from phase1_tokens_embeddings.weights import SHAPES
from phase4_scheduler.simulator import StepSize
from phase4_scheduler.simulator.cost_model import ComputedCost
from phase5_real_gpu.measuring.memory_step import step_bytes
from tests.web.clicking import shown, slide
from web.pieces.bytes import CARD, SHOWN_MODELS, levels_of_card, way_of

UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "kB": 1e3, "MB": 1e6, "GB": 1e9}


def quantity(text: str) -> float:
    """ "1,070 µs" is 0.00107."""
    value, unit = text.split()
    return float(value.replace(",", "")) * UNITS[unit]


@pytest.mark.parametrize("name", SHOWN_MODELS)
@pytest.mark.parametrize("users, context", [(1, 1), (32, 1000), (512, 64)])
def test_the_operations_add_up_to_the_step(name, users, context):
    shape = SHAPES[name]
    layer, head, seconds = way_of(shape, users, context)
    together = [*layer * shape.num_layers, head]
    assert sum(p.bytes for p in together) == step_bytes(shape, users, context).from_memory
    if name != "llama-3-70b":  # one card is too small for it
        cost = ComputedCost.of(shape, CARD)
        size = StepSize.of([(context - 1, 1)] * users)
        assert sum(p.operations for p in together) == cost.work(size).operations
        assert seconds >= cost.seconds(
            size
        )  # one operation behind the other: no sooner than if all overlapped
    halves, _, shared = way_of(shape, users, context, num_cards=2)
    assert sum(p.bytes for p in halves) == sum(p.bytes for p in layer) / 2
    assert shared > seconds / 2 and [p.name for p in halves if p.wire] == ["out", "MLP down"]


def test_the_page_shows_the_way_of_the_bytes_as_python_computes_it(piece_on):
    page, piece = piece_on("gpu", "bytes")
    for name, users, context, cards in [
        ("llama-3-8b", 32, 4096, 1),  # the figures of the text
        ("llama-3-8b", 512, 64, 1),
        ("llama-3-70b", 64, 2048, 4),
        ("gpt2", 1, 1024, 1),
    ]:
        piece.get_by_label("model", exact=True).select_option(name)
        slide(piece, "users", users.bit_length() - 1)
        slide(piece, "tokens each", [64, 256, 1024, 2048, 4096].index(context))
        slide(piece, "cards", cards.bit_length() - 1)
        layer, head, seconds = way_of(SHAPES[name], users, context, cards)
        layers = SHAPES[name].num_layers
        whole = layers * sum(p.bytes for p in layer) + head.bytes
        assert quantity(shown(piece, "the step, at least")) == pytest.approx(seconds, rel=5e-3)
        assert quantity(shown(piece, "out of HBM, each card")) == pytest.approx(whole, rel=5e-3)
        assert quantity(shown(piece, "a layer")) == pytest.approx(sum(p.seconds for p in layer), rel=5e-3)
        assert piece.locator(".strip .of-wire").count() == (2 if cards > 1 else 0)
        for part in layer:
            piece.locator(f'[data-part="{part.name}"]').dispatch_event("click")
            assert shown(piece, "part") == part.name
            assert quantity(shown(piece, "part bytes")) == pytest.approx(part.bytes, rel=5e-3)
            assert quantity(shown(piece, "reading")) == pytest.approx(part.reading, rel=5e-3)
            assert quantity(shown(piece, "computing")) == pytest.approx(part.computing, rel=5e-3)
            said = "So arithmetic decides" if part.computing > part.reading else "So bytes decide"
            assert said in shown(piece, "says")
        slide(piece, "moment of the step", 1000)  # its end: all has come out
        assert shown(piece, "part") == "LM head"
        assert quantity(shown(piece, "so far")) == pytest.approx(whole, rel=5e-3)
        for level, passed in (("HBM", whole), ("shared memory", whole)):
            told = shown(piece.locator(f'[data-level="{level}"]'), "takes")
            assert quantity(told) == pytest.approx(passed / levels_of_card()[level]["rate"], rel=5e-3)
    piece.get_by_label("model", exact=True).select_option("llama-3-70b")
    slide(piece, "cards", 0)
    assert "It does not fit" in shown(piece, "fits")
    piece.get_by_label("model", exact=True).select_option("gpt2")
    slide(piece, "cards", 3)
    assert "cannot be shared evenly" in shown(piece, "fits")
    slide(piece, "cards", 0)
    piece.locator('[data-part="MLP up"]').focus()
    page.keyboard.press("Enter")
    assert shown(piece, "part") == "MLP up"
