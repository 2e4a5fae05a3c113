"""Traces: logs of real requests with their times and lengths, read from a file. They hold no texts.

Sources: Patel et al., "Splitwise" (2024), for the Azure traces; Qin et al., "Mooncake" (2025), section 4, for
traces with hash ids.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from labkit.errors import LabError
from phase4_scheduler.simulator.traffic import TRACE_BLOCK, TrafficRequest

LONGEST = 10_000_000  # tokens; more in a trace is a mistake, not a request


@dataclass(frozen=True)
class Trace:
    """Requests of a file, in the order of their times, the first at 0.

    Attributes:
        format: "Azure CSV" or "Mooncake JSONL".
        skipped: lines that could not be used.
        first_problem: what was wrong with the first of them.
        unsorted: lines that stood behind a later one.
    """

    requests: list[TrafficRequest]
    format: str
    skipped: int = 0
    first_problem: str = ""
    unsorted: int = 0


def read_trace(path: str | Path, skip_bad_lines: bool = False) -> Trace:
    """Read a trace in one of two formats. The file's first line tells which.

    Azure CSV:       TIMESTAMP,ContextTokens,GeneratedTokens
                     2023-11-16 18:17:03.9799600,4808,10
    Mooncake JSONL:  {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}
                     (milliseconds; each hash id stands for a block of 512 tokens and all before it)

    Args:
        skip_bad_lines: leave out lines that make no sense, and count them, instead of refusing the file.

    Raises:
        LabError: no such file, neither format, nothing in it, or (unless skipped) a bad line. The message
            names the file and the line.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8-sig", errors="replace").split("\n")
    except OSError as error:
        raise LabError(f"cannot read the trace {path} ({error.strerror}): check the path") from None
    numbered = [(i, line.strip()) for i, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise LabError(f"the trace {path} is empty: a header and a line a request are needed")
    if numbered[0][1].startswith("{"):
        kind, read_line = "Mooncake JSONL", _mooncake_line
    else:
        kind, columns = "Azure CSV", _azure_columns(path, numbered.pop(0)[1])

        def read_line(text: str) -> TrafficRequest:
            return _azure_line(text, columns)

    requests, skipped, first_problem = [], 0, ""
    for number, text in numbered:
        try:
            requests.append(read_line(text))
        except (ValueError, OverflowError, RecursionError, csv.Error) as error:
            problem = f"{path}, line {number}: {error}"
            if not skip_bad_lines:
                raise LabError(f"{problem} (--skip-bad-lines leaves such lines out)") from None
            skipped, first_problem = skipped + 1, first_problem or problem
    if not requests:
        because = f": none of its {skipped} lines can be used. First: {first_problem}" if skipped else ""
        raise LabError(f"the trace {path} holds no requests{because or ', only a header'}")
    unsorted = sum(b.arrival < a.arrival for a, b in zip(requests, requests[1:]))
    requests.sort(key=lambda r: r.arrival)
    start = requests[0].arrival
    return Trace(
        [replace(r, arrival=r.arrival - start) for r in requests], kind, skipped, first_problem, unsorted
    )


AZURE_COLUMNS = ("timestamp", "contexttokens", "generatedtokens")


def _azure_columns(path: Path, header: str) -> list[int]:
    """Where the three columns are. Upper and lower case, blanks and underscores do not matter."""
    try:
        names = [
            name.strip().lower().replace("_", "").replace(" ", "") for name in next(csv.reader([header]))
        ]
        return [names.index(name) for name in AZURE_COLUMNS]
    except (ValueError, csv.Error):
        raise LabError(
            f"{path} is no trace that this course can read: its first line is {header[:60]!r}, expected is "
            "TIMESTAMP,ContextTokens,GeneratedTokens (Azure CSV) or a JSON object (Mooncake)"
        ) from None


def _azure_line(text: str, columns: Sequence[int]) -> TrafficRequest:
    cells = [cell.strip() for cell in next(csv.reader([text]))]
    if len(cells) <= max(columns):
        raise ValueError(f"{len(cells)} columns, {max(columns) + 1} are needed")
    when, prompt, answer = (cells[i] for i in columns)
    return TrafficRequest(
        _seconds(when), _length("ContextTokens", prompt), _length("GeneratedTokens", answer)
    )


def _mooncake_line(text: str) -> TrafficRequest:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ValueError(f"no JSON ({error})") from None
    if not isinstance(data, dict):
        raise ValueError(f"{text[:40]} is no JSON object")
    for key in ("timestamp", "input_length", "output_length"):
        if type(data.get(key)) not in (int, float):
            raise ValueError(f"{key} is {data.get(key)!r}, a number is needed")
    if not math.isfinite(data["timestamp"]):
        raise ValueError(f"timestamp is {data['timestamp']}, a finite number of milliseconds is needed")
    prompt, answer = (_length(key, data[key]) for key in ("input_length", "output_length"))
    hash_ids = data.get("hash_ids") or []
    if not isinstance(hash_ids, list) or any(type(h) is not int or not 0 <= h < 2**63 for h in hash_ids):
        raise ValueError("hash_ids has to be a list of whole numbers from 0")
    if len(hash_ids) > -(-prompt // TRACE_BLOCK):
        raise ValueError(
            f"{len(hash_ids)} hash_ids, but {prompt} tokens have only {-(-prompt // TRACE_BLOCK)} blocks of {TRACE_BLOCK}"
        )
    return TrafficRequest(data["timestamp"] / 1000, prompt, answer, hash_ids=tuple(hash_ids))


def _seconds(text: str) -> float:
    """A date and time ("2023-11-16 18:17:03.9799600"; without a zone it is taken as UTC) or plain seconds."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            when = datetime.fromisoformat(text)  # digits after the sixth are dropped
        except ValueError:
            raise ValueError(f"TIMESTAMP is {text!r}, expected is such as 2023-11-16 18:17:03.98") from None
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(seconds):
        raise ValueError(f"TIMESTAMP is {text!r}, a finite number of seconds is needed")
    return seconds


def _length(name: str, value: str | int | float) -> int:
    try:
        tokens = int(value)
        exact = tokens == float(value)
    except (ValueError, OverflowError):
        exact = False
    if not exact:
        raise ValueError(f"{name} is {value!r}, a whole number of tokens is needed")
    if not 1 <= tokens <= LONGEST:
        raise ValueError(f"{name} is {tokens:,}, from 1 to {LONGEST:,} tokens make sense")
    return tokens
