"""A pytest plugin for runs of nbval: skips cells that need a GPU, and notes what came out of every cell.

pytest -p exercises.publishing.nbval_report --nbval-lax ... ; the notes go to the file INFERENCE_LAB_NBVAL_REPORT
"""

import json
import os
import re
import time
from collections.abc import Generator
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from nbval.kernel import RunningKernel

from labkit.machine import has_gpu

NEEDS_GPU = "this cell needs a GPU"
_cells: list[dict[str, Any]] = []


class KernelDied(Exception):
    """The kernel ended while a cell ran."""


def pytest_configure(config: pytest.Config) -> None:
    """A kernel that has died is noticed at once; nbval itself would wait for the cell's time limit."""
    plain = RunningKernel.await_reply
    if getattr(plain, "notices_death", False):
        return

    def await_reply(self: RunningKernel, msg_id: str, timeout: float | None = None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return plain(self, msg_id, timeout=0.5)
            except Empty:
                if not self.is_alive():
                    raise KernelDied("this cell ended the kernel") from None
                if deadline is not None and time.monotonic() > deadline:
                    raise

    await_reply.notices_death = True  # type: ignore[attr-defined]
    RunningKernel.await_reply = await_reply


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cells = [item for item in items if "gpu" in _tags(item)]
    if cells and not has_gpu():
        for item in cells:
            item.add_marker(pytest.mark.skip(reason=NEEDS_GPU))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    if hasattr(item, "cell") and (call.when == "call" or report.outcome != "passed"):
        report.user_properties.append(("cell", describe(item, call, report)))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _cells.extend(value for key, value in report.user_properties if key == "cell")


def pytest_sessionfinish(session: pytest.Session) -> None:
    target = os.environ.get("INFERENCE_LAB_NBVAL_REPORT")
    if target and not hasattr(session.config, "workerinput"):  # under xdist only the first process writes
        Path(target).write_text(json.dumps(_cells), encoding="utf-8")


def describe(item: Any, call: pytest.CallInfo[None], report: pytest.TestReport) -> dict[str, Any]:
    """What a cell did, in plain values."""
    outputs = item.test_outputs or []
    error = next((o for o in outputs if o.output_type == "error"), None)
    traceback = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error.traceback)) if error else ""
    arrow = re.search(r"^-+> (\d+) (.*)$", traceback, re.MULTILINE)  # in the cell: what it calls comes below
    boxes = [
        o.data["text/plain"]
        for o in outputs
        if "data" in o and "inference-lab-box" in o.data.get("text/html", "")
    ]
    return {
        "notebook": str(item.path),
        "number": item.cell_num,
        "source": item.cell.source,
        "tags": _tags(item),
        "outcome": report.outcome,
        "reason": report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else "",
        "error": error.ename if error else (call.excinfo.typename if call.excinfo else ""),
        "message": error.evalue if error else (str(call.excinfo.value) if call.excinfo else ""),
        "where": f" in line {arrow[1]}" if arrow else "",
        "line": arrow[2].strip() if arrow else "",
        "boxes": boxes,
        "seconds": round(call.duration, 2),
    }


def _tags(item: Any) -> list[str]:
    return list(item.cell.metadata.get("tags", [])) if hasattr(item, "cell") else []
