"""Traffic for a model server: who asks when, how much they bring (ISL) and how much they want (OSL).

ISL is the input sequence length, the tokens of the prompt. OSL is the output sequence length, the tokens of
the answer. Traffic is either drawn from a pattern (chat, code, ...), or read from a trace: a log of real
requests with their times and lengths. Traces hold no texts, so the prompts are made up, but two prompts
share exactly the blocks that the trace says they share.

Sources: vllm/benchmarks/serve.py (`get_request`) for bursty arrivals; Patel et al., "Splitwise" (2024), for
the Azure traces; Qin et al., "Mooncake" (2025), section 4, for traces with hash ids.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from labkit.errors import LabError

TRACE_BLOCK = 512  # tokens that one hash id of a Mooncake trace stands for
LONGEST = 10_000_000  # tokens; more in a trace is a mistake, not a request


@dataclass(frozen=True)
class TrafficRequest:
    """One line of traffic.

    Attributes:
        arrival: seconds after the start.
        prompt_tokens, output_tokens: ISL and OSL.
        kind: the pattern it comes from, or "trace".
        priority: counts under the policy "priority"; smaller is more urgent.
        hash_ids: names of the prompt's blocks of 512 tokens. Equal names, equal tokens.
    """

    arrival: float
    prompt_tokens: int
    output_tokens: int
    kind: str = "trace"
    priority: int = 0
    hash_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pattern:
    """A kind of use. Lengths are drawn evenly from the ranges, both ends included.

    `priority` says who goes first under the policy "priority": a chat has somebody waiting at the screen.
    """

    name: str
    isl: tuple[int, int]
    osl: tuple[int, int]
    priority: int

    @property
    def input_per_output(self) -> float:
        """Prompt tokens for each token of the answer, on average."""
        return sum(self.isl) / sum(self.osl)


PATTERNS = {
    p.name: p
    for p in (
        Pattern("summarisation", (2000, 4000), (100, 300), 2),
        Pattern("chat", (50, 200), (100, 500), 0),
        Pattern("code", (200, 500), (500, 2000), 1),
    )
}
"""The ranges are those of the source article. Its fourth pattern, "mixed", is a third of each."""
PATTERN_NAMES = (*PATTERNS, "mixed")


# ---------------------------------------------------------------------- drawn traffic


def arrival_times(n: int, rate: float, burstiness: float, rng: np.random.Generator) -> np.ndarray:
    """Times at which `n` requests arrive, `rate` a second on average. The first comes at 0.

    The gaps follow a gamma distribution with shape `burstiness`. At 1 that is the exponential distribution:
    a Poisson process, many users who know nothing of each other. Below 1 they come in bursts with long
    pauses, above 1 more evenly. The variance of a gap, over its squared mean, is 1 / burstiness.

    Args:
        rate: requests a second; infinity: all at once.

    Raises:
        ValueError: a rate or burstiness that is not above 0, or no requests.
    """
    if n < 1:
        raise ValueError(f"requests is {n}: at least 1 is needed")
    if not rate > 0:
        raise ValueError(f"rate is {rate}: requests a second, above 0 (inf: all at once)")
    if not (burstiness > 0 and math.isfinite(burstiness)):
        raise ValueError(f"burstiness is {burstiness}: a number above 0 (1 is Poisson, below is bursty)")
    if math.isinf(rate):
        return np.zeros(n)
    gaps = rng.gamma(shape=burstiness, scale=1 / (rate * burstiness), size=n - 1)
    return np.concatenate([[0.0], np.cumsum(gaps)])


def draw_traffic(
    pattern: str, n: int, rate: float, burstiness: float = 1.0, seed: int = 0
) -> list[TrafficRequest]:
    """`n` requests of a pattern. Lengths do not depend on the rate: the same seed asks for the same work.

    Raises:
        ValueError: unknown pattern, or see `arrival_times`.
    """
    if pattern not in PATTERN_NAMES:
        raise ValueError(f"unknown pattern {pattern!r}: use {', '.join(PATTERN_NAMES)}")
    arrivals = arrival_times(n, rate, burstiness, np.random.default_rng([seed, 1]))
    rng = np.random.default_rng([seed, 2])
    of = list(PATTERNS.values()) if pattern == "mixed" else [PATTERNS[pattern]]
    requests = []
    for arrival, which in zip(arrivals.tolist(), rng.integers(len(of), size=n)):
        p = of[which]
        isl, osl = (int(rng.integers(low, high + 1)) for low, high in (p.isl, p.osl))
        requests.append(TrafficRequest(arrival, isl, osl, p.name, p.priority))
    return requests


def at_rate(requests: Sequence[TrafficRequest], rate: float) -> list[TrafficRequest]:
    """The same requests in the same order, with times stretched or squeezed to `rate` a second on average."""
    if not rate > 0:
        raise ValueError(f"rate is {rate}: requests a second, above 0 (inf: all at once)")
    last = requests[-1].arrival
    factor = 0.0 if math.isinf(rate) or last == 0 else (len(requests) - 1) / rate / last
    return [replace(r, arrival=r.arrival * factor) for r in requests]


def fit_lengths(requests: Sequence[TrafficRequest], max_model_len: int) -> tuple[list[TrafficRequest], float]:
    """Lengths that fit a context, all shortened by one factor, so that their proportions stay.

    Returns:
        The requests, and the factor: 1 if they fit as they are.
    """
    longest = max(r.prompt_tokens + r.output_tokens for r in requests)
    factor = min(1.0, max_model_len / longest)
    if factor == 1.0:
        return list(requests), factor

    def shorter(n: int) -> int:
        return max(1, math.floor(n * factor))

    # A request of one output token keeps it, so the prompt has to leave room.
    return [
        replace(
            r,
            prompt_tokens=max(1, min(shorter(r.prompt_tokens), max_model_len - shorter(r.output_tokens))),
            output_tokens=shorter(r.output_tokens),
        )
        for r in requests
    ], factor


class PromptMaker:
    """Made-up prompts: as long as they should be, shared where the hash ids say so, and nowhere else.

    Args:
        vocab_size: tokens are drawn from [1, vocab_size).
        seed: for the draw.
        factor: by how much the lengths were shortened (`fit_lengths`); blocks shrink with them.
    """

    def __init__(self, vocab_size: int = 8192, seed: int = 0, factor: float = 1.0) -> None:
        self.vocab_size, self.seed = vocab_size, seed
        self.block_tokens = max(1, math.floor(TRACE_BLOCK * factor))
        self._blocks: dict[int, list[int]] = {}

    def _draw(self, n: int, *key: int) -> list[int]:
        return np.random.default_rng([self.seed, *key]).integers(1, self.vocab_size, size=n).tolist()

    def block(self, hash_id: int) -> list[int]:
        """The tokens that this hash id stands for, the same each time."""
        if hash_id not in self._blocks:
            self._blocks[hash_id] = self._draw(self.block_tokens, 1, hash_id)
        return self._blocks[hash_id]

    def prompt(self, request: TrafficRequest, number: int) -> list[int]:
        """The prompt of request `number`: its named blocks, then tokens of its own."""
        tokens: list[int] = []
        for hash_id in request.hash_ids:
            if len(tokens) >= request.prompt_tokens:
                break
            tokens += self.block(hash_id)
        del tokens[request.prompt_tokens :]
        if missing := request.prompt_tokens - len(tokens):
            tokens += self._draw(missing, 2, number)
        return tokens


# ---------------------------------------------------------------------- traces


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
