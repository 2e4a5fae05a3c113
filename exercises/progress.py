"""The learner's progress: outputs/progress.json. What cannot be read or written costs the notes, never the lesson."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from exercises.verdict import Verdict
from labkit.paths import ROOT, outputs

FRESH: dict[str, Any] = {"solved": False, "tries": 0, "hints": 0, "rung": 0, "last": ""}
"""Of one exercise: solved once; checks of an answer; most hints seen; the hint shown last; the last diagnosis."""

_unwritten: dict[str, dict[str, Any]] = {}  # notes that could not be written: they last as long as the kernel


def path() -> Path:
    return outputs() / "progress.json"


def load() -> dict[str, dict[str, Any]]:
    """Notes by exercise. A file that is broken counts as empty."""
    try:
        exercises = json.loads(path().read_text(encoding="utf-8"))["exercises"]
        notes = {
            name: FRESH | {k: v for k, v in entry.items() if type(v) is type(FRESH.get(k))}
            for name, entry in exercises.items()
        }
    except FileNotFoundError:
        notes = {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        _put_aside()
        notes = {}
    return notes | _unwritten


def of(name: str) -> dict[str, Any]:
    return load().get(name, dict(FRESH))


def rung(name: str) -> int:
    """The hint of this exercise that was shown last, 0 for none."""
    return of(name)["rung"]


def note_check(name: str, verdict: Verdict) -> int:
    """Count a check. Returns how many answers have been tried, this one included. The stub does not count."""
    entry = of(name)
    if verdict.state != "not attempted" and not is_demonstration():
        entry["tries"] += 1
        entry["solved"] = entry["solved"] or verdict.state == "correct"
        entry["last"] = verdict.diagnosis
        _keep(name, entry)
    return entry["tries"]


def note_hint(name: str, number: int) -> None:
    entry = of(name)
    entry["rung"] = number
    entry["hints"] = max(entry["hints"], number)
    _keep(name, entry)


def restart_hints(name: str) -> None:
    """The next hint is the first again. How many were seen stays."""
    entry = of(name)
    if entry["rung"]:
        entry["rung"] = 0
        _keep(name, entry)


def is_demonstration() -> bool:
    """Whether the course's own solution runs: a solution notebook, or a source as a script. Nobody solved that."""
    if Path.cwd() == ROOT / "notebooks" / "solutions":
        return True
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return script is not None and Path(script).resolve().parent.parent == ROOT / "exercises"


def _keep(name: str, entry: dict[str, Any]) -> None:
    notes = load() | {name: entry}
    text = json.dumps({"version": 1, "exercises": notes}, indent=1, sort_keys=True)
    beside = path().with_suffix(f".{os.getpid()}.tmp")
    try:
        path().parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path())  # at once, so that no reader sees half a file
        _unwritten.clear()
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        if not _unwritten:
            print(f"Your progress cannot be noted in {path()} ({error.strerror}).", file=sys.stderr)
        _unwritten[name] = entry


def _put_aside() -> None:
    """Keep a broken file under another name: what is in it may still be read by a person."""
    with contextlib.suppress(OSError):
        os.replace(path(), path().with_suffix(".broken.json"))
