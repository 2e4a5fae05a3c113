"""A transcript: what an answer gave in each case, written where the answer runs and replayed where it does not.

    process with the answer   grader -> cases -> the answer's results       one event for all cases: the results
    process without it        grader -> cases -> the event                  the verdict that counts

A grader is deterministic. So the same grader, run again on the transcript, judges the same results, in a process that has never
run a line of the answer. An answer that changes the grader, or writes a transcript of its own, gains nothing: the results in it
are still compared with the course's.

Only data crosses: numbers, texts, containers, tensors. Torch's own loader for weights reads it, which makes nothing else. Where
torch is not loaded there are no tensors: then a pickle that may name no class.
"""

import io
import pickle
import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Set, ValuesView
from typing import Any

import numpy as np

from exercises.judging.comparing import is_tensor
from exercises.judging.verdict import NotYet

LEFT_OUT = "(no data)"  # stands for a function, an exception or an object: equal to no right result


current: list[Any] | Iterator[Any] | None = None  # what is written, or what is replayed


def event(work: Callable[[], Any]) -> Any:
    """Do the work, and note its result in the transcript; or give the result that stands there.

    Raises:
        NotYet: the transcript has no more.
    """
    if current is None:
        return work()
    if isinstance(current, list):
        current.append(plain(out := work()))
        return out
    for out in current:
        return out
    raise NotYet("transcript-ends", "The answer ended before the grader had seen all of its results.")


def encoded(value: Any) -> bytes:
    value, file = plain(value), io.BytesIO()
    if "torch" in sys.modules:
        sys.modules["torch"].save(value, file)
    else:
        pickle.dump(value, file, protocol=5)
    return file.getvalue()


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is no data")


def decoded(data: bytes) -> Any:
    """The value, as `plain` has left it.

    Raises:
        Exception: of any kind, if this is nothing that `encoded` gives.
    """
    if not data.startswith(b"PK"):  # no file of torch's
        return _Reader(io.BytesIO(data)).load()
    import torch

    with torch.serialization.safe_globals([frozenset]):
        return torch.load(io.BytesIO(data), weights_only=True)


def plain(value: Any) -> Any:
    """The same numbers, texts, containers and tensors, of Python's and torch's own types. What is no data is left out."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()  # the right result is never an array of numpy's
    if is_tensor(value):
        return value.detach().cpu().clone()
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, Set):
        return (frozenset if isinstance(value, Hashable) else set)(map(plain, value))
    if isinstance(value, (list, deque, ValuesView)):
        return [*map(plain, value)]
    if value is None or isinstance(value, bool) or is_tensor(value, "dtype"):
        return value
    for kind in (str, int, float, bytes, bytearray):
        if isinstance(value, kind):
            return kind(value)
    return LEFT_OUT
