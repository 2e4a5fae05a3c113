"""A wrong answer as a right one with a slip in it: other text at one place of its source."""

import inspect
import linecache
import textwrap
from collections.abc import Mapping
from itertools import count
from typing import Any

_numbers = count()

Slip = Mapping[str, str]  # what stands there -> what the learner wrote


def changed(right: Any, slip: Slip) -> Any:
    """A function or a class like `right`, with the slip in its source."""
    source = with_slip(textwrap.dedent(inspect.getsource(right)), slip, right.__name__)
    return defined_by(source, right.__name__, vars(inspect.getmodule(right)))[right.__name__]


def with_slip(source: str, slip: Slip, name: str) -> str:
    """
    Raises:
        ValueError: what is to be replaced does not stand in the source.
    """
    for old, new in slip.items():
        if old not in source:
            raise ValueError(f"{old!r} does not stand in {name}")
        source = source.replace(old, new)
    return source


def defined_by(
    source: str, name: str, names: dict[str, Any], into: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What the source defines among these names. Its lines are found by tracebacks, and by Triton."""
    filename = f"<{name}, changed {next(_numbers)}>"
    linecache.cache[filename] = len(source), None, source.splitlines(keepends=True), filename
    defined: dict[str, Any] = {} if into is None else into
    exec(compile(source, filename, "exec"), names, defined)
    return defined
