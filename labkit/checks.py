"""Checks of a user's values. Each check takes the name and the value, and returns the value to store or raises a
ValueError that names the value and the range."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from numbers import Integral, Real
from typing import Any, get_type_hints

from labkit.foreign import quoted

Check = Callable[[str, Any], Any]


def check_fields(data: Any) -> None:
    """Check the fields of a dataclass object that are declared as `Annotated[type, check]`, also of a frozen one."""
    for name, check in checks_of(type(data)).items():
        vars(data)[name] = check(name, getattr(data, name))


@cache
def checks_of(kind: type) -> dict[str, Check]:
    """Return the checks of a dataclass by field name."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}


def whole(low: int, high: float = math.inf, allowed: str = "", optional: bool = False) -> Check:
    """A whole number from `low` to `high`. `allowed`: the range in words. `optional`: or None."""
    allowed = allowed or f"a whole number, {low} or above" + (", or None" if optional else "")

    def check(name: str, value: Any) -> int | None:
        if value is None and optional:
            return None
        if not is_whole(value) or not low <= value <= high:
            raise ValueError(f"{name} is {quoted(value)}: it must be {allowed}")
        return int(value)  # torch refuses numpy's numbers

    return check


def real(low: float, high: float, allowed: str, above_low: bool = False) -> Check:
    """A finite number from `low` to `high`; `above_low`: `low` itself is out of range."""

    def check(name: str, value: Any) -> float:
        number = as_float(value)
        if not (math.isfinite(number) and low <= number <= high) or (above_low and number == low):
            raise ValueError(f"{name} is {quoted(value)}: it must be {allowed}")
        return number

    return check


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {quoted(value)}: it must be True or False")
    return value


def text(name: str, value: Any) -> str | None:
    """A text; None stays None."""
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} is {quoted(value)}: it must be a text, or None")
    return value


def texts(blank: bool) -> Check:
    """One text or several, kept as a tuple; None: none. `blank`: a text may consist of white space."""

    def check(name: str, value: Any) -> tuple[str, ...]:
        found = (value,) if isinstance(value, str) else _items(Iterable, "a list", name, value)
        if wrong := [s for s in found if not isinstance(s, str) or not (s if blank else s.strip())]:
            raise ValueError(f"{name} holds {quoted(wrong[0])}: each text needs at least one character")
        return found

    return check


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    """Token ids, kept as a tuple, each once; None: none."""
    return _ids(name, _items(Iterable, "a list", name, value))


def allowed_ids(name: str, value: Any) -> tuple[int, ...] | None:
    """Token ids, at least one; None stays None."""
    if value is not None and not (value := token_ids(name, value)):
        raise ValueError(f"{name} is empty: allow at least one token, or give None")
    return value


def biases(name: str, value: Any) -> dict[int, float] | None:
    """Token id -> a number from -100 to 100; None stays None."""
    _ids(name, _items(Mapping, "a dict from token id to bias", name, value))
    for token, bias in () if value is None else value.items():
        if not -100 <= as_float(bias) <= 100:
            raise ValueError(f"{name} of token {token} is {quoted(bias)}: it must be from -100 to 100")
    return None if value is None else {int(token): float(bias) for token, bias in value.items()}


def is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def as_float(value: Any) -> float:
    """Return the value as a float; NaN if it is not a number, or too large for a float."""
    if type(value) is float:  # as in `_ids`
        return value
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan


def _items(kind: type, needed: str, name: str, value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    try:
        if isinstance(value, kind):
            return tuple(value)
    except TypeError:  # a tensor without dimensions has the methods of an iterable, but cannot be iterated
        pass
    raise ValueError(f"{name} is {quoted(value)}: it must be {needed}, or None")


def _ids(name: str, ids: tuple[Any, ...]) -> tuple[int, ...]:
    # The exact type first: `isinstance` with an abstract class takes long for 100,000 ids.
    if wrong := [i for i in ids if not (type(i) is int or is_whole(i)) or i < 0]:
        raise ValueError(f"{name} holds {quoted(wrong[0])}: token ids are whole numbers from 0")
    return tuple(dict.fromkeys(map(int, ids)))
