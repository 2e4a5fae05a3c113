"""A transcript: what came out of each call of an answer, written where the answer runs and replayed where it does not.

    process with the answer   grader -> guard(answer, ...) -> the call       one event a call: its result, arguments it changed
    process without it        grader -> guard(stand-in, ...) -> the event    the verdict that counts

A grader is deterministic. So the same grader, run again on the transcript, asks for the same calls in the same order and judges
the same results, in a process that has never run a line of the answer. An answer that changes the grader, or writes a
transcript of its own, gains nothing: the results in it are still compared with the course's.

Only data crosses, as JSON: numbers, texts, containers, tensors, exceptions by their kind, small classes of the course by their
fields. Lists and objects that a call was given keep their identity, so a list changed in place is the same list afterwards.
Anything else becomes an `Opaque`.
"""

import builtins
import functools
import json
import re
import sys
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set, ValuesView
from dataclasses import is_dataclass
from enum import Enum
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch

from exercises.judging.comparing import verdict_of
from exercises.judging.verdict import NotYet, Verdict

OF_THE_COURSE = re.compile(r"(phase\d_\w+|exercises|labkit)(\.\w+)*")
LONGEST = 60_000_000  # bytes of a transcript


class Opaque:
    """Stands in the replaying process for something that is no data: an answer, or an object of its own class."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind, self.text = kind, text
        self.__name__ = self.__qualname__ = text

    def __getattr__(self, name: str) -> "Opaque":
        if name.startswith("__"):
            raise AttributeError(name)
        return Opaque("attribute", name)

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and (self.kind, self.text) == (other.kind, other.text)

    def __hash__(self) -> int:
        return hash(self.text)


class Recorder:
    """Writes events while the grader runs with the answer."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.size, self.inside = 0, False

    def write(self, value: Any) -> None:
        self.lines.append(json.dumps(value))
        self.size += len(self.lines[-1])
        if self.size > LONGEST:
            raise NotYet("too-much-data", f"The results of your answer are larger than {LONGEST:,} bytes.")

    def event(self, work: Callable[[], Any], given: Any) -> Any:
        if self.inside:  # a call within a call: the outer one's result is what counts
            return work()
        code = Encoder(known := reachable(given))
        before = [_contents(thing) for thing in known]
        self.inside = True
        try:
            out, error = work(), None
            if isinstance(out, Iterator):
                out = _Items(out)
        except (Exception, SystemExit) as caught:
            out, error = caught, caught
        finally:
            self.inside = False
        value = code(out)
        changed = [
            [i, code.state(thing)] for i, thing in enumerate(known) if not _unchanged(before[i], thing)
        ]
        self.write([error is not None, value, changed])
        if error:
            raise error
        return iter(out) if isinstance(out, _Items) else out


class Player:
    """Replays events while the grader runs without the answer."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = iter(lines)

    def event(self, work: Callable[[], Any], given: Any) -> Any:
        if (line := next(self.lines, None)) is None:
            raise NotYet(
                "transcript-ends", "The answer's process ended before the grader had seen all of its results."
            )
        raised, value, changed = json.loads(line)
        code = Decoder(reachable(given))
        out = code(value)
        for number, state in changed:
            code.fill(code.things[number], state)
        if raised:
            raise out
        return out


current: Recorder | Player | None = None


def event(work: Callable[[], Any], *given: Any) -> Any:
    """Do the work, or replay it. `given`: what the work may change."""
    return current.event(work, given) if current else work()


# ------------------------------------------------------------------ what a call may change


class _Items(list):
    """What an iterator gave."""


def of_the_course(thing: Any) -> bool:
    return OF_THE_COURSE.fullmatch(str(getattr(thing, "__module__", ""))) is not None


def _crosses(kind: type) -> bool:
    """A class of the course whose objects are their fields, and no more."""
    return of_the_course(kind) and (is_dataclass(kind) or kind.__eq__ is object.__eq__)


def kind_of(value: Any) -> str | None:
    """How a value crosses that has contents; None if it has none."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return None if getattr(value.dtype, "hasobject", False) else "array"
    if isinstance(value, Mapping):
        return "dict"
    if isinstance(value, (list, ValuesView)):
        return "iterator" if isinstance(value, _Items) else "list"
    if isinstance(value, deque):
        return "deque"
    if isinstance(value, Set):
        return "set" if isinstance(value, set) else "frozenset"
    kind = type(value)
    plain = _crosses(kind) and not issubclass(kind, (Enum, BaseException, Opaque))
    return "record" if plain and not callable(value) else None


def fields_of(thing: Any) -> dict[str, Any]:
    slots = (name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ()))
    return getattr(thing, "__dict__", {}) | {
        name: getattr(thing, name) for name in slots if hasattr(thing, name)
    }


def reachable(given: Any) -> list[Any]:
    """All lists, objects and tensors that a call can change, in an order that is the same in both processes."""
    found: dict[int, Any] = {}
    waiting = deque([given])
    while waiting:
        thing = waiting.popleft()
        if isinstance(thing, tuple):
            waiting.extend(thing)
        elif isinstance(thing, functools.partial):
            waiting.extend((thing.func, thing.args, thing.keywords))
        elif isinstance(thing, MethodType):
            waiting.append(thing.__self__)
        elif isinstance(thing, FunctionType):
            waiting.extend(cell.cell_contents for cell in thing.__closure__ or () if of_the_course(thing))
        elif (kind := kind_of(thing)) and kind != "frozenset" and id(thing) not in found:
            found[id(thing)] = thing
            if kind not in ("array", "set"):
                waiting.extend(part for part in _contents(thing) if not isinstance(part, (str, int, bytes)))
    return list(found.values())


def _contents(thing: Any) -> Any:
    """What is in a list, an object or a tensor right now."""
    if isinstance(thing, torch.Tensor):
        return thing.detach().clone()
    if isinstance(thing, np.ndarray):
        return thing.copy()
    pairs = thing if isinstance(thing, Mapping) else fields_of(thing) if kind_of(thing) == "record" else None
    return [*thing] if pairs is None else [*pairs, *pairs.values()]


def _unchanged(before: Any, thing: Any) -> bool:
    now = _contents(thing)
    if not isinstance(now, list):
        equal = torch.equal if isinstance(now, torch.Tensor) else np.array_equal
        return now.dtype == before.dtype and equal(now, before)
    atoms = (int, float, str, bytes, bool)
    same = (a is b or (type(a) is type(b) and type(a) in atoms and a == b) for a, b in zip(before, now))
    return len(now) == len(before) and all(same)


# ------------------------------------------------------------------ there and back


class Encoder:
    """Values as JSON. An array is `[kind, ...]`; what may be shared has a number, and is written out once."""

    def __init__(self, known: list[Any]) -> None:
        self.things = list(known)  # kept alive, so that no id is used again
        self.numbers = {id(thing): number for number, thing in enumerate(known)}

    def __call__(self, value: Any) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, np.generic) and not value.dtype.hasobject:
            return ["scalar", *_numbers(np.array(value))]
        if isinstance(value, Enum):
            return _opaque(value)
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            return int(value) if abs(value) < 1 << 63 else ["int", hex(value)]
        if isinstance(value, float):
            return float(value)
        if isinstance(value, (bytes, bytearray)):
            return ["bytes", b64encode(value).decode()]
        if isinstance(value, torch.dtype):
            return ["dtype", str(value)]
        if isinstance(value, range):
            return ["range", value.start, value.stop, value.step]
        if isinstance(value, tuple):
            return ["tuple", *map(self, value)]
        if isinstance(value, NotYet):
            return ["not yet", vars(verdict_of(value)), self(value.__context__)]
        if isinstance(value, BaseException):
            return ["error", [kind.__name__ for kind in type(value).__mro__], str(value)[:1000]]
        if (kind := kind_of(value)) is None:
            return _opaque(value)
        if id(value) in self.numbers:
            return ["@", self.numbers[id(value)]]
        self.numbers[id(value)] = number = len(self.things)
        self.things.append(value)
        about = f"{type(value).__module__}:{type(value).__qualname__}" if kind == "record" else ""
        return [kind, number, about, self.state(value)]

    def state(self, thing: Any) -> Any:
        """What is in a list, an object or a tensor."""
        if isinstance(thing, (torch.Tensor, np.ndarray)):
            return _numbers(thing)
        if kind_of(thing) == "record":
            return [[name, self(value)] for name, value in fields_of(thing).items()]
        if isinstance(thing, Mapping):
            return [[self(key), self(value)] for key, value in thing.items()]
        return [self(item) for item in thing]


def _numbers(array: Any) -> list[Any]:
    """[of torch or of numpy, dtype, shape, the bytes]"""
    if isinstance(array, np.ndarray):
        return ["numpy", array.dtype.str, list(array.shape), b64encode(array.tobytes()).decode()]
    flat = array.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return ["torch", str(array.dtype), list(array.shape), b64encode(flat.tobytes()).decode()]


def _opaque(value: Any) -> Any:
    try:
        text = str(getattr(value, "__qualname__", None) or repr(value))[:500]
    except Exception:  # the object of a learner may do anything
        text = "?"
    return ["opaque", type(value).__name__, text]


class Decoder:
    """The values back. It makes only plain data, and records of classes that the grader has loaded itself.

    Raises:
        ValueError, TypeError, LookupError, AttributeError: this is nothing that an `Encoder` writes.
    """

    def __init__(self, known: list[Any]) -> None:
        self.things = list(known)

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        kind, *rest = value
        makers: dict[str, Callable[..., Any]] = {
            "@": lambda number: self.things[number],
            "tuple": lambda *items: tuple(map(self, items)),
            "int": lambda text: int(text, 16),
            "bytes": b64decode,
            "scalar": lambda *of: _array(*of)[()],
            "dtype": _torch_dtype,
            "range": range,
            "error": _exception,
            "not yet": lambda fields, came_from: _not_yet(fields, self(came_from)),
            "opaque": Opaque,
        }
        return makers[kind](*rest) if kind in makers else self._new(kind, *rest)

    def _new(self, kind: str, number: int, about: str, state: Any) -> Any:
        if number != len(self.things):
            raise ValueError("out of order")
        empty = {"list": list, "iterator": list, "dict": dict, "set": set, "frozenset": set, "deque": deque}
        if kind == "array":
            self.things.append(_array(*state))
            return self.things[number]
        self.things.append(_record(about) if kind == "record" else empty[kind]())
        thing = self.fill(self.things[number], state)
        return iter(thing) if kind == "iterator" else frozenset(thing) if kind == "frozenset" else thing

    def fill(self, thing: Any, state: Any) -> Any:
        """Put the state into a list, an object or a tensor that is there already."""
        if isinstance(thing, torch.Tensor):
            thing.data = _array(*state)
        elif isinstance(thing, np.ndarray):
            thing[...] = _array(*state)
        elif isinstance(thing, (list, deque, set, dict)):
            items = [tuple(map(self, item)) if isinstance(thing, dict) else self(item) for item in state]
            thing.clear()
            (thing.update if isinstance(thing, (set, dict)) else thing.extend)(items)
        else:
            for name in set(getattr(thing, "__dict__", {})) - {name for name, _ in state}:
                del thing.__dict__[name]
            for name, value in state:
                object.__setattr__(thing, name, self(value))
        return thing


def _torch_dtype(name: str) -> torch.dtype:
    found = getattr(torch, name.removeprefix("torch."))
    if not isinstance(found, torch.dtype):
        raise ValueError(f"no dtype {name!r}")
    return found


def _array(of: str, dtype: str, shape: list[int], data: str) -> Any:
    raw = bytearray(b64decode(data))
    if of == "torch":
        kind = _torch_dtype(dtype)
        return torch.frombuffer(raw, dtype=kind).reshape(shape) if raw else torch.empty(shape, dtype=kind)
    if np.dtype(dtype).hasobject:
        raise ValueError("objects do not cross")
    return np.frombuffer(raw, np.dtype(dtype)).reshape(shape)


def _record(name: str) -> Any:
    """An empty object of a class of the course, of a module that is loaded."""
    module, _, path = name.partition(":")
    kind: Any = functools.reduce(getattr, path.split("."), sys.modules[module])
    if not (isinstance(kind, type) and _crosses(kind) and f"{kind.__module__}:{kind.__qualname__}" == name):
        raise ValueError(f"{name!r} does not cross")
    return object.__new__(kind)


def _not_yet(fields: dict[str, str], came_from: BaseException | None) -> NotYet:
    error = Verdict(**fields).to_error()
    error.__context__ = came_from
    return error


def _exception(kinds: list[str], text: str) -> BaseException:
    """The nearest kind of exception that Python or the course itself has."""
    known = vars(builtins) | {"JSONDecodeError": json.JSONDecodeError}
    known |= vars(sys.modules.get("exercises.phase5.ranks", builtins))
    kind = next(
        kind
        for name in kinds
        if isinstance(kind := known.get(name), type) and issubclass(kind, BaseException)
    )
    error = kind.__new__(kind)
    error.args = (text,)
    return error
