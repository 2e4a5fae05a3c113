"""The texts of measure_machine.py: the plan, each figure and its expected range, the clocks."""

from collections.abc import Iterable, Sequence
from typing import Any

from labkit.lab import Lab
from labkit.predictions import show_value
from phase1_tokens_embeddings.weights import CARDS
from phase1_tokens_embeddings.weights.cards import Card
from phase5_real_gpu.measuring.first_contact import Expected, expected_on
from phase5_real_gpu.measuring.measurements import Measurement
from phase5_real_gpu.measuring.steps import Step

SIX = ("h200", "h100", "a100-80", "rtx4090", "l4", "t4")


def show_figures(lab: Lab, card: Card, measurements: Iterable[Measurement]) -> None:
    """The figures for which the data sheet gives a range, with this range."""
    expected = expected_on(card)
    rows = [
        [m.name, m.unit, m.value, *in_words(m.value, expected[m.name])]
        for m in measurements
        if m.name in expected
    ]
    if rows:
        columns = ["figure", "unit", "measured", "expected", ""]
        lab.table(f"{card.title}, compared with its data sheet", columns, rows)


def in_words(value: float, expected: Expected) -> tuple[str, str]:
    """The range, and what a figure outside means."""
    if expected.low is None:
        return "does not fit", "unexpected: check which model ran"
    span = f"{show_value(expected.low)} to {show_value(expected.high)}"
    if expected.low <= value <= expected.high:
        return span, "as expected"
    if (value > expected.high) == ("/s" in expected.unit):
        return span, "unexpected: faster than the data sheet allows, so check the timing"
    return span, "unexpected: slower, so check the log, the clocks and the path"


def show_clocks(lab: Lab, card: dict[str, Any]) -> None:
    """card: its own report, see `gpu_watch.py`."""
    clocks = [card.get(f"{which}_sm_clock_mhz") for which in ("lowest", "median", "highest")]
    if all(clocks):
        low, median, high = (f"{clock:,.0f}" for clock in clocks)
        reasons = ", ".join(card.get("throttled_by", ())) or "nothing"
        lab.say(f"Clock while busy: {low} to {high} MHz, median {median}. Lowered by: {reasons}.")


def show_plan(lab: Lab, steps: Sequence[Step]) -> None:
    lab.table(
        f"What is run, in {sum(step.seconds for step in steps) / 60:.1f} minutes at most",
        ["part", "what it shows", "seconds"],
        [[step.name, step.shows, step.seconds] for step in steps],
    )
    figures = {name.removesuffix("-bfloat16"): e.unit for name, e in expected_on(CARDS["h200"]).items()}
    rows = []
    for card in map(CARDS.get, SIX):
        spans = (in_words(0, expected)[0].replace(" to ", "–") for expected in expected_on(card).values())
        rows.append([card.title.rsplit(" ", 2)[0], *spans])
    lab.table(
        "What the cards should give",
        ["card", *(f"{name.replace('-', ' ')} ({unit})" for name, unit in figures.items())], rows,
        note="One end is the limit by the data sheet, the other the share of it that a sound setup reaches.",
    )  # fmt: skip
