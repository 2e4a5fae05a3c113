"""The learner's progress: outputs/progress.json. What cannot be read or written costs the notes, never the lesson."""

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from filelock import FileLock

from exercises.judging.verdict import Verdict
from labkit.paths import ROOT, outputs, write_whole

FRESH: dict[str, Any] = {"solved": False, "tries": 0, "hints": 0, "rung": 0, "stuck": False, "last": ""}
"""Of one exercise: solved once; checks of an answer until then; most hints seen; the hint shown last; whether a check
has failed since that hint; the last diagnosis."""


def path() -> Path:
    return outputs() / "progress.json"


def load() -> dict[str, dict[str, Any]]:
    """Notes by exercise. A file that is broken counts as empty.

    Raises:
        OSError: the file is there and cannot be read now.
    """
    try:
        exercises = json.loads(path().read_text(encoding="utf-8"))["exercises"]
        return {
            name: FRESH | {k: v for k, v in entry.items() if type(v) is type(FRESH.get(k))}
            for name, entry in exercises.items()
        }
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError):
        with contextlib.suppress(OSError):  # a person may still read it
            os.replace(path(), path().with_suffix(".broken.json"))
        return {}


def of(name: str) -> dict[str, Any]:
    try:
        return load().get(name, dict(FRESH))
    except OSError:
        return dict(FRESH)


def note_check(name: str, verdict: Verdict) -> int | None:
    """Count a check. The stub does not count, and nothing does once it is solved.

    Returns:
        How many answers it took, if this one solves it; 0 if it was solved before; None if nothing is solved.
    """
    if is_demonstration():
        return None
    before, entry = of(name), of(name)
    entry["stuck"] = verdict.state != "correct"
    if verdict.state != "not attempted":
        entry["tries"] += not entry["solved"]
        entry["solved"] = entry["solved"] or verdict.state == "correct"
        entry["last"] = verdict.diagnosis
    if entry != before:
        _keep(name, entry)
    if verdict.state != "correct":
        return None
    return 0 if before["solved"] else entry["tries"]


def next_rung(name: str, rungs: int) -> int:
    """The hint to be shown: the next one if a check has failed since the last hint, else that one again."""
    entry = of(name)
    return min(entry["rung"] + (entry["stuck"] or not entry["rung"]), rungs)


def note_hint(name: str, number: int) -> None:
    entry = of(name)
    entry["rung"], entry["stuck"] = number, False
    entry["hints"] = max(entry["hints"], number)
    _keep(name, entry)


def is_demonstration() -> bool:
    """Whether the course's own solution runs: a solution notebook, or a source as a script. The learner did not solve that."""
    if Path.cwd() == ROOT / "notebooks" / "solutions":
        return True
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return script is not None and Path(script).resolve().parent.parent == ROOT / "exercises"


def _keep(name: str, entry: dict[str, Any]) -> None:
    try:
        path().parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path().with_suffix(".lock"), timeout=30):  # other kernels add notes of their own
            notes = load() | {name: entry}
            text = json.dumps({"version": 1, "exercises": notes}, indent=1, sort_keys=True)
            write_whole(path(), text)
    except OSError as error:
        print(f"Your progress cannot be noted in {path()} ({error.strerror or error}).", file=sys.stderr)
