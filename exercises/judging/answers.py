"""Calling a learner's answer: is it still the stub, and which line of it raised?"""

import inspect
import linecache
from collections.abc import Mapping, Sequence
from mmap import mmap
from traceback import walk_tb
from types import CodeType, FunctionType, TracebackType
from typing import Any

from exercises.judging.comparing import show
from exercises.judging.verdict import NOTHING, NotAttempted, NotYet

YOUR_TURN = "your turn"  # what the stub raises NotImplementedError with


class _Watch:
    """What the grader has done so far in this process: which files hold answers, what was called last."""

    files: set[str]
    cases: int  # calls of answers
    last: tuple[str, Any, Any] | None  # name of the answer, what was tried, what came out
    board: mmap | None = None  # memory shared with the parent process, for what is being called right now

    def __init__(self) -> None:
        self.start(())

    def start(self, answers: Sequence[Any]) -> None:
        self.files = {code.co_filename for answer in answers for code in _codes(answer)}
        self.last, self.cases = None, 0

    def calling(self, tried: str) -> None:
        """Note a call where it can be read even if it never comes back. "": it has."""
        if self.board is not None:
            text = tried.encode()[: len(self.board) - 1] + b"\0"
            self.board[: len(text)] = text


watch = _Watch()


def guard(answer: Any, args: Sequence[Any], tried: str) -> Any:
    """Call an answer. An exception inside becomes NotYet("raises"), with the learner's line.

    Other diagnoses: "not-a-function", "wrong-signature", "ends-python" (for sys.exit).

    Args:
        tried: the call as the learner would write it, such as "count_pairs([1, 2, 1])".
    """
    if not callable(answer):
        raise NotYet("not-a-function", f"Give a function; this is {show(answer, 100)}.")
    watch.files.update(code.co_filename for code in _codes(answer))
    watch.calling(tried)
    watch.cases += 1
    try:
        out = answer(*args)
    except (Exception, SystemExit) as error:
        raise name_the_trouble(error, answer, args, tried) from None
    finally:
        watch.calling("")
    watch.last = (name_of(answer), tried, out)
    return out


def name_of(answer: Any) -> str:
    name = getattr(answer, "__qualname__", None) or getattr(answer, "__name__", None)
    return name.split("<locals>.")[-1] if isinstance(name, str) else f"this {type(answer).__name__}"


# ------------------------------------------------------------------ stubs


def is_stub(answer: Any) -> bool:
    """Whether an answer that is a value has not been written yet: it is None or ..., or holds nothing else.

    A function that is still the stub says so when it is called.
    """
    if isinstance(answer, (Mapping, list, tuple)):
        values = answer.values() if isinstance(answer, Mapping) else answer
        return bool(answer) and all(value is None or value is Ellipsis for value in values)
    return answer is None or answer is Ellipsis


def stub_says(name: str, answer: Any) -> str:
    if is_stub(answer):
        return f"`{name}` has no value yet: put your answer in place of `...`."
    return f"`{name}` is still empty: write your lines in place of `raise NotImplementedError(...)`."


# ------------------------------------------------------------------ what went wrong inside


def name_the_trouble(
    error: BaseException, answer: Any = None, args: Sequence[Any] = (), tried: Any = NOTHING
) -> NotYet:
    """An exception out of an answer, or out of the grader because of what an answer gave, as NotYet."""
    if isinstance(error, NotYet):
        return error
    found = learner_line(error.__traceback__)
    if isinstance(error, NotImplementedError) and YOUR_TURN in str(error):
        return NotAttempted(stub_says(found[0] if found else name_of(answer), answer))
    what, message = type(error).__name__, " ".join(str(error).split())[:300]
    if isinstance(error, SystemExit):
        where = f" in {_place(found)}" if found else ""
        says = f"sys.exit, exit or quit was called{where}. An answer returns its result."
        return NotYet("ends-python", says, tried)
    if found is not None:
        extra = " It calls itself too often: look at what ends the recursion." * (
            type(error) is RecursionError
        )
        end = f": {message}." if message else "."
        return NotYet("raises", f"{what} in {_place(found)}{end.replace('..', '.')}{extra}", tried)
    if answer is not None and isinstance(error, TypeError) and not _takes(answer, args):
        says = f"`{name_of(answer)}` cannot be called as asked: {message}. Keep the arguments of the stub."
        return NotYet("wrong-signature", says, tried)
    if answer is not None:
        return NotYet("raises", f"{what}: {message}" if message else what, tried)
    if watch.last is not None:
        name, tried, out = watch.last
        if out is None:
            says = f"`{name}` returned None. Is a `return` missing?"
            return NotYet("returns-nothing", says, tried, "None")
        says = f"What `{name}` gave could not be used ({what}: {message}). Look at its type and its shape."
        return NotYet("unusable-result", says, tried, show(out))
    says = f"The grader itself failed ({what}: {message}). That is a fault of the course, not of your answer."
    return NotYet("grader-failed", says, tried)


def learner_line(tb: TracebackType | None) -> tuple[str, int, str] | None:
    """(function, line within it, the line's text) of the innermost frame that the learner wrote."""
    found = None
    for frame, line in walk_tb(tb):
        code = frame.f_code
        file = code.co_filename
        own = file in watch.files or "ipykernel_" in file or file.startswith("<ipython-input")
        if own and (code.co_name == "<lambda>" or code.co_name[0] != "<"):
            text = linecache.getline(file, line, frame.f_globals).strip()
            found = code.co_qualname.split("<locals>.")[-1], line - code.co_firstlineno + 1, text
    return found


def _place(found: tuple[str, int, str]) -> str:
    name, line, text = found
    return f"line {line} of your `{name}`" + (f", `{text}`" if text else "")


def _codes(answer: Any) -> list[CodeType]:
    kind = answer if isinstance(answer, type) else type(answer)
    functions = [inspect.unwrap(answer)] if isinstance(answer, FunctionType) else vars(kind).values()
    return [function.__code__ for function in functions if isinstance(function, FunctionType)]


def _takes(answer: Any, args: Sequence[Any]) -> bool:
    try:
        inspect.signature(answer).bind(*args)
    except (TypeError, ValueError) as error:  # ValueError: no signature is to be had
        return isinstance(error, ValueError)
    return True
