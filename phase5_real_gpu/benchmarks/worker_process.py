"""A program in a process of its own that answers one line of JSON to each line it is given."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any


class Worker:
    """Start `python script *arguments` and wait until it says that it is ready."""

    def __init__(self, name: str, python: str, script: Path, *arguments: str) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  it lives as long as the process
        self._process = subprocess.Popen(
            [python, str(script), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip
        self._answer()

    def ask(self, line: str) -> dict[str, Any]:
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has stopped; `_answer` says why
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise SystemExit(f"{self.name} stopped:\n" + "".join(self._log.readlines()[-15:]))
        return json.loads(line)

    def stop(self) -> None:
        self._process.stdin.close()
        self._process.wait()
