"""Traces: logs of real requests with their times and lengths, read from a file. They hold no texts.

Sources: Patel et al., "Splitwise" (2024), for the Azure traces; Qin et al., "Mooncake" (2025), section 4, for
traces with hash ids.
"""

import csv
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from labkit.errors import LabError
from phase4_scheduler.simulator.traffic import TRACE_BLOCK, TrafficRequest

LONGEST = 10_000_000  # tokens; more in a trace is a mistake, not a request
AZURE_COLUMNS = ("timestamp", "contexttokens", "generatedtokens")


class AzureLine(BaseModel):
    """A time without a zone is taken as UTC; plain seconds will do as well."""

    TIMESTAMP: datetime
    ContextTokens: Annotated[int, Field(ge=1, le=LONGEST)]
    GeneratedTokens: Annotated[int, Field(ge=1, le=LONGEST)]


class MooncakeLine(BaseModel, strict=True):
    timestamp: FiniteFloat  # milliseconds
    input_length: Annotated[float, Field(multiple_of=1, ge=1, le=LONGEST)]
    output_length: Annotated[float, Field(multiple_of=1, ge=1, le=LONGEST)]
    hash_ids: list[Annotated[int, Field(ge=0, lt=2**63)]] | None = None


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
        except (ValueError, csv.Error) as error:
            problems.append(f"{path}, line {number}: {_problem(error)}")
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
    line = AzureLine(**dict(zip(AzureLine.model_fields, (cells[i] for i in columns), strict=True)))
    when = line.TIMESTAMP if line.TIMESTAMP.tzinfo else line.TIMESTAMP.replace(tzinfo=UTC)
    return TrafficRequest(when.timestamp(), line.ContextTokens, line.GeneratedTokens)


def _mooncake_line(text: str) -> TrafficRequest:
    line = MooncakeLine.model_validate_json(text)
    prompt, answer, hash_ids = int(line.input_length), int(line.output_length), line.hash_ids or ()
    blocks = -(-prompt // TRACE_BLOCK)
    if len(hash_ids) > blocks:
        room = f"{prompt} tokens have only {blocks} blocks of {TRACE_BLOCK}"
        raise ValueError(f"{len(hash_ids)} hash_ids, but {room}")
    return TrafficRequest(line.timestamp / 1000, prompt, answer, hash_ids=tuple(hash_ids))


def _problem(error: Exception) -> str:
    """What is wrong with a line: the field, its value, the rule."""
    if not isinstance(error, ValidationError):
        return str(error)
    wrong = error.errors(include_url=False)[0]
    value = "missing" if wrong["type"] == "missing" else reprlib.repr(wrong["input"])
    return f"{'.'.join(map(str, wrong['loc'])) or 'the line'} is {value}: {wrong['msg']}"
