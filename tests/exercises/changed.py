"""A wrong answer as a right one with a slip in it."""

import inspect
import linecache
import textwrap
from collections.abc import Mapping
from itertools import count
from typing import Any

_numbers = count()


def changed(answer: Any, slips: Mapping[str, str]) -> Any:
    """A function, a kernel or a class like `answer`, with other text in its source: {what stands there: what the learner wrote}."""
    answer = getattr(answer, "fn", answer)  # a kernel: the function under its decorator
    source = textwrap.dedent(inspect.getsource(answer))
    for old, new in slips.items():
        assert old in source, f"{old!r} does not stand in {answer.__name__}"
        source = source.replace(old, new)
    filename = f"<{answer.__name__}, changed {next(_numbers)}>"
    linecache.cache[filename] = len(source), None, source.splitlines(keepends=True), filename
    defined: dict[str, Any] = {}
    exec(compile(source, filename, "exec"), vars(inspect.getmodule(answer)), defined)
    return defined[answer.__name__]
