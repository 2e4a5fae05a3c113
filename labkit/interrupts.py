"""Ctrl-C at a moment that suits: between two pieces of work, never in the middle of one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """A Ctrl-C inside takes effect at the end. A second one takes effect at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread ever hears of it
        return
    usual = signal.getsignal(signal.SIGINT)
    if not callable(usual):  # it is ignored
        yield
        return
    came = []

    def note(number, frame) -> None:
        if came:
            usual(number, frame)
        came.append((number, frame))

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if came:
        usual(*came[0])
