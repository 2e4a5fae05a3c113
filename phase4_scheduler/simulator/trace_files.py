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
from functools import partial
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from phase4_scheduler.simulator.traffic import TRACE_BLOCK, TrafficRequest

LONGEST = 10_000_000  # tokens; more in a trace is a mistake, not a request
AZURE_COLUMNS = ("timestamp", "contexttokens", "generatedtokens")
MOONCAKE_KEYS = ("timestamp", "input_length", "output_length")


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
    try:
        text = Path(path).read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise LabError(f"cannot read the trace {path} ({error.strerror}): check the path") from None
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise LabError(f"the trace {path} is empty: a header and a line a request are needed")
    if lines[0][1].startswith("{"):
        kind, parse = "Mooncake JSONL", _mooncake_line
    else:
        kind, parse = "Azure CSV", partial(_azure_line, columns=_azure_columns(path, lines.pop(0)[1]))

    requests, problems = [], []
    for number, line in lines:
        try:
            requests.append(parse(line))
        except (ValueError, OverflowError, RecursionError, csv.Error) as error:
            problems.append(f"{path}, line {number}: {error}")
            if not skip_bad_lines:
                raise LabError(f"{problems[0]} (--skip-bad-lines leaves such lines out)") from None
    if not requests:
        why = f": none of its {len(problems)} lines can be used. First: {problems[0]}" if problems else ""
        raise LabError(f"the trace {path} holds no requests{why or ', only a header'}")
    unsorted = sum(b.arrival < a.arrival for a, b in zip(requests, requests[1:]))
    requests.sort(key=lambda r: r.arrival)
    from_zero = [replace(r, arrival=r.arrival - requests[0].arrival) for r in requests]
    return Trace(from_zero, kind, len(problems), problems[0] if problems else "", unsorted)


def _azure_columns(path: str | Path, header: str) -> list[int]:
    """Where the three columns are. Upper and lower case, blanks and underscores do not matter."""
    try:
        names = ["".join(name.lower().replace("_", "").split()) for name in next(csv.reader([header]))]
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
    lengths = _length("ContextTokens", prompt), _length("GeneratedTokens", answer)
    return TrafficRequest(_seconds(when), *lengths)


def _mooncake_line(text: str) -> TrafficRequest:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ValueError(f"no JSON ({error})") from None
    if not isinstance(data, dict):
        raise ValueError(f"{text[:40]} is no JSON object")
    for key in MOONCAKE_KEYS:
        if type(data.get(key)) not in (int, float):
            raise ValueError(f"{key} is {data.get(key)!r}, a number is needed")
    if not math.isfinite(data["timestamp"]):
        raise ValueError(f"timestamp is {data['timestamp']}, a finite number of milliseconds is needed")
    prompt, answer = (_length(key, data[key]) for key in MOONCAKE_KEYS[1:])
    hash_ids, blocks = data.get("hash_ids") or [], -(-prompt // TRACE_BLOCK)
    if not isinstance(hash_ids, list) or any(type(h) is not int or not 0 <= h < 2**63 for h in hash_ids):
        raise ValueError("hash_ids has to be a list of whole numbers from 0")
    if len(hash_ids) > blocks:
        raise ValueError(
            f"{len(hash_ids)} hash_ids, but {prompt} tokens have only {blocks} blocks of {TRACE_BLOCK}"
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


def _length(name: str, value: Any) -> int:
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
