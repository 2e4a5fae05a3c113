"""Traces: logs of real requests with their times and lengths, read from a file. They hold no texts.

Sources: Patel et al., "Splitwise" (2024), for the Azure traces; Qin et al., "Mooncake" (2025), section 4, for
traces with hash ids.
"""

import reprlib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from labkit.errors import LabError
from phase4_scheduler.simulator.traffic import TRACE_BLOCK, TrafficRequest

LONGEST = 10_000_000  # tokens; more in a trace is a mistake, not a request
AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


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


def read_trace(path: str | Path) -> list[TrafficRequest]:
    """Read a trace in one of two formats. The file's first line tells which.

    Azure CSV:       TIMESTAMP,ContextTokens,GeneratedTokens
                     2023-11-16 18:17:03.9799600,4808,10
    Mooncake JSONL:  {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}
                     (milliseconds; each hash id stands for a block of 512 tokens and all before it)

    Returns:
        The requests in the order of their times, the first at 0.

    Raises:
        LabError: no such file, neither format, nothing in it, or a bad line. The message names the file and the line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise LabError(f"cannot read the trace {path} ({error.strerror}): check the path") from None
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    parse = _mooncake_line
    if lines and not lines[0][1].startswith("{"):
        parse, (_, header) = _azure_line, lines.pop(0)
        if header != AZURE_HEADER:
            raise LabError(
                f"{path} is no trace that this course can read: its first line is {header[:60]!r}, expected is "
                f"{AZURE_HEADER} (Azure CSV) or a JSON object (Mooncake)"
            )
    requests = []
    for number, line in lines:
        try:
            requests.append(parse(line))
        except ValueError as error:
            raise LabError(f"{path}, line {number}: {_problem(error)}") from None
    if not requests:
        raise LabError(f"the trace {path} holds no requests")
    requests.sort(key=lambda r: r.arrival)
    return [replace(r, arrival=r.arrival - requests[0].arrival) for r in requests]


def _azure_line(text: str) -> TrafficRequest:
    line = AzureLine(**dict(zip(AZURE_HEADER.split(","), text.split(","))))
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


def _problem(error: ValueError) -> str:
    """What is wrong with a line: the field, its value, the rule."""
    if not isinstance(error, ValidationError):
        return str(error)
    wrong = error.errors(include_url=False)[0]
    value = "missing" if wrong["type"] == "missing" else reprlib.repr(wrong["input"])
    return f"{'.'.join(map(str, wrong['loc'])) or 'the line'} is {value}: {wrong['msg']}"
