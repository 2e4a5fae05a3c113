"""Predictions: agreement, verdicts, guesses and their score."""

import pytest

from labkit.predictions import Prediction, parse_guess, score_guess, show_value

RATE = dict(predicted=0.64, source_says=0.9, tolerance=0.15, kind="timing")
SPAN = dict(predicted=(1, 9), between=True)


@pytest.mark.parametrize(
    ("fields", "holds", "verdict"),
    [
        (dict(predicted=3, measured=3), True, "reproduced"),
        (dict(predicted=3, measured=4), False, "corrected"),
        (dict(predicted=-100, measured=-104, tolerance=0.05), True, "reproduced"),
        (dict(predicted=True, measured=False), False, "corrected"),
        (dict(predicted="memory", measured="memory"), True, "reproduced"),
        (dict(predicted=[1, 2], measured=[1, 2, 3]), False, "corrected"),
        (dict(predicted=[1.0, 2.0], measured=(1.01, 2.0), tolerance=0.02), True, "reproduced"),
        (dict(predicted=28, measured=28, source_says=32), True, "corrected"),
        (dict(predicted=102, measured=101, source_says=102), False, "corrected"),
        (dict(predicted=5150, measured=5150, source_says=5000, tolerance=0.05), True, "reproduced"),
        (dict(predicted=3.0, measured=6.98, tolerance=1 / 3, kind="timing"), False, "differs here"),
        (RATE | dict(measured=0.55), True, "corrected"),
        (RATE | dict(measured=0.2), False, "differs here"),
        (RATE | dict(measured=0.9), False, "reproduced"),
        (SPAN | dict(measured=9, kind="timing"), True, "reproduced"),
        (SPAN | dict(measured=9.1, kind="timing"), False, "differs here"),
        (SPAN | dict(measured=4.3, source_says=(2, 4), tolerance=0.1), True, "reproduced"),
        (SPAN | dict(measured=4.5, source_says=(2, 4), tolerance=0.1), True, "corrected"),
        (SPAN | dict(measured=4.5, source_says=4, tolerance=0.2), True, "reproduced"),
        (dict(predicted=[1], between=True, measured="?"), False, "corrected"),  # from a damaged report
        (dict(needs="vLLM"), None, "needs vLLM"),
        (dict(needs="GPU"), None, "needs a GPU"),
        (dict(needs="download"), None, "needs a download"),
    ],
)
def test_verdict(fields, holds, verdict):
    p = Prediction("x", "?", **fields)
    assert (p.holds, p.verdict) == (holds, verdict)


@pytest.mark.parametrize(
    ("text", "measured", "guess"),
    [
        ("1,500", 3, 1500), ("3.1x", 3.0, 3.1), ("81%", 81.6, 81), ("30 tokens", 28, 30), ("3k", 2900, 3000),
        ("2 million", 5, 2_000_000), ("yes", True, True), ("n", True, False), ("403, 6667", [403, 6668], [403, 6667]),
        ("39 / 39 / 22", [39, 39, 22], [39, 39, 22]), (" memory ", "memory", "memory"),
    ],
)  # fmt: skip
def test_parse_guess(text, measured, guess):
    assert parse_guess(text, measured) == guess


def test_a_guess_in_another_unit_is_converted():
    assert parse_guess("2048 MiB", 2.5, "GiB") == 2 and parse_guess("0.03 s", 25.0, "ms") == pytest.approx(30)
    assert parse_guess("2", 2.5, "GB") == 2 and parse_guess("7", 7.2, "billion") == 7


@pytest.mark.parametrize(
    ("text", "measured"), [("many", 3), ("perhaps", True), ("1 2", [1, 2, 3]), ("1/2", 0.5), ("10-20", 12)]
)
def test_a_guess_that_cannot_be_read(text, measured):
    with pytest.raises(ValueError):
        parse_guess(text, measured)


@pytest.mark.parametrize(
    ("guess", "measured", "points"),
    [
        (100, 100, 3), (95, 100, 3), (109, 100, 3), (112, 100, 2), (70, 100, 2), (60, 100, 1), (399, 100, 1),
        (401, 100, 0), (0, 100, 0), (-100, 100, 0), (0, 0, 3), (5, 0, 0), (True, True, 3), (False, True, 0),
        ([1, 2, 3], [1, 2, 3], 3), ("a", "b", 0), ("Memory", "memory", 3), ("had", "' had'", 3),
        ("?", "!", 0), ("'!'", "!", 3),
    ],
)  # fmt: skip
def test_score_guess(guess, measured, points):
    assert score_guess(guess, measured) == points


def test_an_id_is_right_or_wrong():
    assert score_guess([15497], [15496], "ids") == 0 and score_guess([15496], [15496], "ids") == 3
    assert score_guess([15497], [15496]) == 3, "a quantity may miss by a little"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1234567, "", "1,234,567"), (0.81635, "", "0.816"), (15.0995, "GB", "15.1 GB"), (True, "", "yes"),
        (None, "ms", "-"), ([1, 2.5], "", "1 / 2.5"), ([50257, 768], "", "50257 / 768"), (3e-7, "s", "3.0e-07 s"), (12345.6, "", "12,346"), (0.0, "", "0"),
    ],
)  # fmt: skip
def test_show_value(value, unit, text):
    assert show_value(value, unit) == text
