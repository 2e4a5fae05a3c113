"""Whether two values are the same, where they part, and how a value is shown.

Values are compared as a teacher would: 2 and 2.0 are the same, floats may differ by rounding, a list may stand
for a tuple and a Counter for a dict; a list does not stand for a tensor.
"""

import inspect
import math
import numbers
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from exercises.judging.verdict import NOTHING, NotYet, Verdict

LONGEST = 700  # characters of one value shown


def is_tensor(value: Any, kind: str = "Tensor") -> bool:
    """Whether it is torch's (or another thing of torch, by its name). torch takes seconds to import; until then there is none."""
    return "torch" in sys.modules and isinstance(value, getattr(sys.modules["torch"], kind))


def as_text(value: Any, exact: bool = False) -> str:
    """A text as it is, anything else as `show` shows it; "" for nothing."""
    if value is NOTHING:
        return ""
    text = value if isinstance(value, str) else show(value, exact=exact)
    return text if len(text) <= 2 * LONGEST else text[: 2 * LONGEST] + " ..."


def show_both(got: Any, expected: Any, by: Callable[..., str] | None = None) -> tuple[str, str]:
    """Both as `show` (or `by`) shows them; without rounding if they would look the same then."""
    by = by or show
    texts = by(got), by(expected)
    return texts if texts[0] != texts[1] else (by(got, exact=True), by(expected, exact=True))


def verdict_of(error: NotYet) -> Verdict:
    """The error with its values as texts."""
    got, expected = show_both(error.got, error.expected, as_text)
    tried = as_text(error.tried)
    return Verdict(error.state, error.diagnosis, error.says[:2000], tried, got, expected)


def show(value: Any, longest: int = LONGEST, exact: bool = False) -> str:
    """A value, short enough to read: floats have five digits, unless they are to be `exact`.

    Never raises, whatever the object's own repr does.
    """
    try:
        if isinstance(value, np.ndarray) or is_tensor(value):
            return _show_array(value, 9 if exact else 4)
        text = repr(value)
        if not exact and len(text) < 100 * longest:
            text = _rounded(value)
    except Exception as error:  # the object of a learner may do anything
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= longest else f"{text[: longest - 20]} ... ({len(text):,} characters)"


def brief(name: str, args: Sequence[Any], function: Callable[..., Any]) -> str:
    """A call as the learner would write it, with the function's own names; larger tensors by their shapes."""

    def text(value: Any) -> str:
        if is_tensor(value):
            return show(value.tolist()) if math.prod(value.shape) < 10 else f"a tensor of {list(value.shape)}"
        return value.__name__ if callable(value) and hasattr(value, "__name__") else show(value, 200)

    parameters = list(inspect.signature(function).parameters)
    names = [f"{parameter}=" for parameter in parameters] if len(args) > 2 else [""] * len(args)
    return f"{name}({', '.join(n + text(arg) for n, arg in zip(names, args))})"


def same(got: Any, expected: Any, tolerance: float = 1e-5) -> bool:
    """Whether the values are the same, floats to within `tolerance` (relative)."""
    return difference(got, expected, tolerance) is None


def difference(got: Any, expected: Any, tolerance: float = 1e-5, at: str = "") -> tuple[str, str] | None:
    """None if the values are the same; else (diagnosis, a sentence that says where they part).

    The diagnosis is "returns-nothing", "wrong-type", "wrong-shape" or "wrong-result".
    """
    here = f"at {at}: " if at else ""
    if got is None and expected is not None:
        return "returns-nothing", here + "the result is None. Is a `return` missing?"
    if is_tensor(expected):
        return _tensor_difference(got, expected, tolerance, here)
    got, (kinds, asked) = _plain(got), _kind_of(expected)
    if not isinstance(got, kinds):
        return "wrong-type", f"{here}return {asked}, not a {type(got).__name__}"
    if isinstance(expected, Mapping):
        lost = [(k, "is missing") for k in expected if k not in got]
        if lost := lost or [(k, "should not be there") for k in got if k not in expected]:
            first, what = lost[0]
            more = f" (and {len(lost) - 1:,} more)" if len(lost) > 1 else ""
            return "wrong-result", f"{here}the key {show(first, 80)}{more} {what}"
        items = [(show(k, 60), got[k], value) for k, value in expected.items()]
    elif isinstance(expected, (list, tuple)):
        items = [(str(i), a, b) for i, (a, b) in enumerate(zip(got, expected))]
    else:
        return _value_difference(got, expected, tolerance, here)
    for place, a, b in items:
        if found := difference(a, b, tolerance, f"{at}[{place}]"):
            # A wrong item is a wrong result, except for what a deeper value's shape says.
            return found if found[0] == "wrong-shape" else ("wrong-result", found[1])
    if len(got) != len(expected):
        return "wrong-result", f"{here}the result has {len(got):,} items instead of {len(expected):,}"
    return None


def _kind_of(expected: Any) -> tuple[Any, str]:
    """The types that may stand for a value's own, and what to ask for."""
    if isinstance(expected, (list, tuple)):
        return (list, tuple), f"a {type(expected).__name__}"
    if isinstance(expected, Mapping):
        return Mapping, "a dict"
    if isinstance(expected, str):
        return str, "text (str)"
    is_number = isinstance(expected, numbers.Real) and not isinstance(expected, bool)
    return (numbers.Real, "a number") if is_number else (object, "")


# ------------------------------------------------------------------ by kind


def _rounded(value: Any, depth: int = 0) -> str:
    """The repr of a value with floats of five digits, also in lists, tuples and dicts."""
    if isinstance(value, float) and math.isfinite(value) and value:
        return repr(round(float(value), max(2, 4 - math.floor(math.log10(abs(value))))))
    if depth < 8 and type(value) in (list, tuple):
        items = ", ".join(_rounded(v, depth + 1) for v in value)
        return f"[{items}]" if type(value) is list else f"({items}{',' * (len(value) == 1)})"
    if depth < 8 and type(value) is dict:
        return "{" + ", ".join(f"{k!r}: {_rounded(v, depth + 1)}" for k, v in value.items()) + "}"
    return repr(value)


def _show_array(value: Any, digits: int) -> str:
    if math.prod(value.shape) > 200:
        kind = "tensor" if is_tensor(value) else "array"
        flat = ", ".join(f"{v:.{digits}g}" for v in value.reshape(-1)[:6].tolist())
        return f"{kind} of shape {tuple(value.shape)}, {value.dtype}; its first values: {flat}, ..."
    if is_tensor(value):
        value = value.detach().cpu()
        value = value.float().numpy() if str(value.dtype) == "torch.bfloat16" else value.numpy()
    return np.array2string(value, precision=digits, suppress_small=True, separator=", ", max_line_width=88)


def _plain(value: Any) -> Any:
    """A number that hides in a tensor or in a numpy scalar."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    return value


def _numpy(value: Any) -> np.ndarray:
    value = value.detach().cpu()
    return value.double().numpy() if value.is_floating_point() else value.numpy()


def _tensor_difference(got: Any, expected: Any, tolerance: float, here: str) -> tuple[str, str] | None:
    if not is_tensor(got):
        if expected.shape == () and isinstance(_plain(got), numbers.Real):
            return _value_difference(_plain(got), expected.item(), tolerance, here)
        return "wrong-type", f"{here}return a torch.Tensor, not a {type(got).__name__}"
    if tuple(got.shape) != tuple(expected.shape):
        return "wrong-shape", f"{here}the shape is {tuple(got.shape)} and should be {tuple(expected.shape)}"
    a, b = _numpy(got), _numpy(expected)
    wrong = a != b
    if a.dtype.kind in "fc" or b.dtype.kind in "fc":
        finite = np.abs(b[np.isfinite(b)])
        scale = float(finite.max()) if finite.size else 1.0  # rounding goes with the largest values
        wrong = ~np.isclose(a, b, rtol=tolerance, atol=max(tolerance * scale, 1e-9), equal_nan=True)
    if not (count := int(wrong.sum())):
        return None
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    where = f"the first at {list(first)}: " if first else ""
    of = f"{count:,} of {wrong.size:,} values differ, " if wrong.size > 1 else ""
    return "wrong-result", f"{here}{of}{where}{_number(a[first])} where {_number(b[first])} is right"


def _number(value: Any) -> str:
    value = _plain(value)
    return f"{value:.6g}" if isinstance(value, float) else show(value, 120)


def _value_difference(got: Any, expected: Any, tolerance: float, here: str) -> tuple[str, str] | None:
    # Long texts are shown from where they part. Short ones are read at a glance: the last line shows them whole.
    if isinstance(expected, str) and got != expected and max(len(got), len(expected)) > 40:
        place = (i for i, (a, b) in enumerate(zip(got, expected)) if a != b)
        part = next(place, min(len(got), len(expected)))
        a, b = got[part : part + 12], expected[part : part + 12]
        return "wrong-result", f"{here}the texts differ from position {part} on: {a!r} where {b!r} is right"
    try:
        equal = bool(got == expected) or (got != got and expected != expected)  # NaN is NaN
    except Exception:
        equal = False
    if isinstance(expected, bool) or expected is None:
        equal = equal and type(got) in (bool, int, type(None))
    elif not equal and isinstance(expected, numbers.Real) and float in (type(got), type(expected)):
        with suppress(OverflowError):  # a whole number beyond all floats
            equal = math.isclose(got, expected, rel_tol=tolerance, abs_tol=1e-9)
    return None if equal else ("wrong-result", f"{here}{_number(got)} where {_number(expected)} is right")


def as_sentence(sentence: str) -> str:
    """A sentence as it should stand: a capital first, and a full stop."""
    return sentence[:1].upper() + sentence[1:] + ("" if sentence[-1:] in ".?!" else ".")
