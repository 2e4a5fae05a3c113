"""The output of a program: to a terminal, a pipe or a file, each of which may be narrow, closed or full."""

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

from rich import box, markup
from rich.console import Console
from rich.table import Table

from labkit.errors import LabError
from labkit.foreign import harmless, quoted, visible
from labkit.interrupts import STOPPED, signals_unwind

WIDTH = 100
NARROWEST = 30  # columns; a narrower terminal wraps the lines
READER_LEFT = 141
"""The exit code of a program whose reader has closed the pipe: 128 + SIGPIPE, as shells have it."""


def escape(text: str) -> str:
    """Escape text so that neither rich nor the terminal reads a part of it as a command."""
    return markup.escape(harmless(text))


def titled(title: str, **look: Any) -> Table:
    """A table with its title at the left."""
    return Table(title=title, title_justify="left", title_style="bold", **{"box": box.SIMPLE_HEAD} | look)


class Page(Console):
    """The console of a program: as wide as the terminal, at most WIDTH columns. A pipe and a file have WIDTH columns."""

    def __init__(self, **look: Any) -> None:
        super().__init__(emoji=False, **look)
        self.width = max(NARROWEST, min(WIDTH, self.width)) if self.file.isatty() else WIDTH

    def on_broken_pipe(self) -> None:
        """Raise the error for `run`. (rich would end with code 1, which means a failure.)"""
        raise BrokenPipeError


def run(work: Callable[[], int | None]) -> int | None:
    """Do the work of a program, and turn every end into an exit code and at most one line on stderr.

    Returns:
        The result of `work`; 2 for a mistake of the user; 130 for Ctrl-C; 141 if the reader has closed the pipe (`... | head`).

    Raises:
        Exception: a bug of the course, or with INFERENCE_LAB_DEBUG any error.
        SystemExit: from argparse, or after SIGTERM (143).
    """
    open_streams()
    try:
        with signals_unwind():
            try:
                return work()
            finally:
                sys.stdout.flush()
    except BrokenPipeError:
        return READER_LEFT
    except KeyboardInterrupt:
        _complain("stopped")
        return STOPPED
    except Exception as error:
        mistake = _mistake(error)
        if mistake is None or os.environ.get("INFERENCE_LAB_DEBUG"):
            raise
        _complain(f"[red]error:[/] {escape(visible(mistake, 2000))}")
        return 2
    finally:
        _settle(sys.stdout)
        _settle(sys.stderr)


def open_streams() -> None:
    """Use UTF-8 on every system, also for a file on Windows. Open /dev/null for a stream that the shell has closed (`>&-`)."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")


def _complain(line: str) -> None:
    with suppress(OSError):  # stderr may be closed
        console = Console(stderr=True, soft_wrap=True, emoji=False, width=WIDTH, height=WIDTH)
        console.print(line, highlight=False)


def _settle(stream: TextIO) -> None:
    """Flush a stream. If that fails, redirect it to /dev/null, because Python flushes again at its end and would report an error."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _mistake(error: Exception) -> str | None:
    """Return one line with the remedy for a user's mistake; None for a bug of the course."""
    if isinstance(error, UnicodeEncodeError):
        return f"{quoted(error.object)} is no text: it holds bytes that are not UTF-8"
    if isinstance(error, (LabError, ValueError, FileNotFoundError, ConnectionError)):
        return str(error)
    if isinstance(error, OSError):
        what = f"{error.filename} cannot be read or written ({error.strerror})" if error.filename else error
        return f"{what}: check the path, the permissions and the disk"
    # Of a GPU, of Python and numpy, of torch on a CPU.
    if type(error).__name__ in ("OutOfMemoryError", "MemoryError") or "can't allocate memory" in str(error):
        return "not enough memory: use a smaller model, --dtype bfloat16, --quick or --device cpu"
    return None
