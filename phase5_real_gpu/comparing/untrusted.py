"""Values from a file that somebody else wrote: each is checked before it is used.

Every function either gives the value back, of the type that was asked for, or raises `Wrong` with what is the
matter and what to do about it. Texts come back without control characters, so that a file cannot move the
cursor of whoever looks at it.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

MOST_BYTES = 4 * 2**20
MEASURE_AGAIN = "measure again (`python phase5_real_gpu/measure_machine.py --out FILE`)"


class Wrong(ValueError):
    """What is wrong with a file, in words for its owner."""


def load_json(path: Path) -> Any:
    """The contents of a JSON file of a sensible size, without NaN and infinities."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise Wrong(f"{path.stat().st_size:,} bytes are no reference file: a few ten thousand are usual")
        text = path.read_bytes().decode("utf-8")
    except Wrong:
        raise
    except FileNotFoundError:
        raise Wrong("there is no such file: check the path, or measure with measure_machine.py") from None
    except UnicodeDecodeError:
        raise Wrong(f"it is not text in UTF-8: {MEASURE_AGAIN}") from None
    except OSError as error:
        raise Wrong(f"it cannot be read ({error.strerror}): check the path") from None
    except ValueError:  # a path with a zero byte
        raise Wrong("there is no such path: check it") from None

    def refuse(word: str) -> None:
        raise Wrong(f"it holds {word}, which is no figure: {MEASURE_AGAIN}")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        what = "the file ends too early" if cut else f"no JSON at line {error.lineno}, column {error.colno}"
        raise Wrong(f"{what}: copy it again, or {MEASURE_AGAIN}") from None
    except RecursionError:
        raise Wrong(f"it is nested too deep: {MEASURE_AGAIN}") from None
    except Wrong:
        raise
    except ValueError:
        raise Wrong(f"it holds a number with thousands of digits: {MEASURE_AGAIN}") from None


def is_number(value: Any) -> bool:
    """A finite one. To Python a boolean is an integer, and an integer may be too large for a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < 1e30 and math.isfinite(value)


def a_number(value: Any, what: str) -> float:
    if not is_number(value) or not value > 1e-30:
        raise Wrong(f"{what} is {shown(value)}, it must be a number above 0: {MEASURE_AGAIN}")
    return float(value)


def a_number_or_none(value: Any, what: str) -> float | None:
    return None if value is None else a_number(value, what)


def a_text(data: dict[str, Any], key: str, default: str | None = None, most: int = 300) -> str:
    value = data.get(key, default)
    if value is None:
        raise Wrong(f"'{key}' is missing: {MEASURE_AGAIN}")
    if not isinstance(value, str):
        raise Wrong(f"'{key}' is {shown(value)}, not a text: {MEASURE_AGAIN}")
    if len(value) > most:
        raise Wrong(f"'{key}' has {len(value):,} characters: shorten it to {most}")
    return plain(value, most)


def a_choice(data: dict[str, Any], key: str, choices: Iterable[str]) -> str:
    value = data.get(key)
    if not isinstance(value, str) or value not in choices:
        raise Wrong(f"'{key}' is {shown(value)}: it must be {' or '.join(choices)}")
    return value


def yes_or_no(data: dict[str, Any], key: str) -> bool:
    value = data.get(key, False)
    if not isinstance(value, bool):
        raise Wrong(f"'{key}' is {shown(value)}: it must be true or false")
    return value


def an_object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Wrong(f"{what} is {kind_of(value)}, not an object: {MEASURE_AGAIN}")
    return value


def a_list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise Wrong(f"{what} is {kind_of(value)}, not a list: {MEASURE_AGAIN}")
    return value


def a_date(value: Any, what: str) -> str:
    try:
        datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise Wrong(f"{what} is {shown(value)}, it should be a date such as 2026-11-21") from None
    return plain(value)  # between date and time any character is accepted, a line break too


def plain(text: str, most: int = 300) -> str:
    """A stranger's text for the screen: no control characters, so no escape sequences and no line breaks."""
    return "".join(c if c.isprintable() else " " for c in text[:most])


def printable(value: Any, depth: int = 0) -> Any:
    """The same for a whole tree of values, whose numbers are finite."""
    if depth > 8:
        raise Wrong(f"it is nested too deep: {MEASURE_AGAIN}")
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {plain(str(k)): printable(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [printable(v, depth + 1) for v in value]
    if value is None or isinstance(value, bool) or is_number(value):
        return value
    raise Wrong(f"it holds {shown(value)}, which is no figure: {MEASURE_AGAIN}")


def shown(value: Any) -> str:
    """Somebody else's value in a message of one line."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother = 2, 60, 60
    try:
        return plain(short.repr(value), 80)
    except ValueError:  # Python does not print an integer of more than 4,300 digits
        return "a number with thousands of digits"


def kind_of(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "missing"}
    return names.get(type(value), "a number")
