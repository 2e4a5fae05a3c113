"""Traffic for a model server: when requests come, how long their prompts (ISL) and their answers (OSL) are.

ISL is the input sequence length, the tokens of the prompt. OSL is the output sequence length, the tokens of
the answer. Traffic is either drawn from a pattern (chat, code, ...), or read from a trace: a log of real
requests with their times and lengths, and perhaps names of the blocks of their prompts.

Sources: vllm/benchmarks/serve.py (`get_request`) for bursty arrivals; Patel et al., "Splitwise" (2024), for the Azure
traces; Qin et al., "Mooncake" (2025), for traces with hash ids.
"""

import math
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from labkit.errors import LabError
from phase3_paged_attention.traffic import PATTERNS

TRACE_BLOCK = 512  # tokens that one hash id of a Mooncake trace stands for


@dataclass(frozen=True)
class TrafficRequest:
    """One line of traffic.

    Attributes:
        arrival: seconds after the start.
        prompt_tokens, output_tokens: ISL and OSL.
        kind: the pattern it comes from, or "trace".
        priority: counts under the policy "priority"; smaller is more urgent.
        hash_ids: names of the prompt's first blocks: of 512 tokens each in a Mooncake trace. Equal names, equal tokens.
    """

    arrival: float
    prompt_tokens: int
    output_tokens: int
    kind: str = "trace"
    priority: int = 0
    hash_ids: tuple[int, ...] = ()


PRIORITIES = {"summarisation": 2, "chat": 0, "code": 1}
"""Of the source article's patterns: in a chat, a user waits at the screen. Mixed traffic is a third of each."""
PATTERN_NAMES = (*PRIORITIES, "mixed")


# ---------------------------------------------------------------------- drawn traffic


def _check_rate(rate: float) -> None:
    if not rate > 0:
        raise ValueError(f"rate is {rate}: requests per second, above 0 (inf: all at once)")


def arrival_times(n: int, rate: float, burstiness: float, rng: np.random.Generator) -> np.ndarray:
    """Times at which `n` requests arrive, `rate` a second on average. The first comes at 0.

    The gaps follow a gamma distribution with shape `burstiness`. At 1 that is the exponential distribution:
    a Poisson process, many independent users. Below 1 they come in bursts with long
    pauses, above 1 more evenly. The variance of a gap, over its squared mean, is 1 / burstiness.

    Args:
        rate: requests per second; infinity: all at once.

    Raises:
        ValueError: a rate or burstiness that is not above 0, or no requests.
    """
    if n < 1:
        raise ValueError(f"requests is {n}: at least 1 is needed")
    _check_rate(rate)
    if not (burstiness > 0 and math.isfinite(burstiness)):
        raise ValueError(f"burstiness is {burstiness}: a number above 0 (1 is Poisson, below is bursty)")
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
    names = list(PRIORITIES) if pattern == "mixed" else [pattern]
    requests = []
    for arrival, which in zip(arrivals.tolist(), rng.integers(len(names), size=n)):
        kind = names[which]
        (isl,), (osl,) = PATTERNS[kind].draw(rng, 1)
        requests.append(TrafficRequest(arrival, int(isl), int(osl), kind, PRIORITIES[kind]))
    return requests


def at_rate(requests: Sequence[TrafficRequest], rate: float) -> list[TrafficRequest]:
    """The same requests in the same order, with times stretched or squeezed to `rate` a second on average."""
    _check_rate(rate)
    last = requests[-1].arrival
    factor = (len(requests) - 1) / rate / last if last else 0.0
    return [replace(r, arrival=r.arrival * factor) for r in requests]


# ---------------------------------------------------------------------- traces

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


# ---------------------------------------------------------------------- how many clusters are in the lengths?
# k-means finds k groups whether there are groups or not, so the answer needs a judge: the silhouette of each point compares the
# mean distance to its own group (a) with that to the nearest other group (b). (b - a) / max(a, b) is near 1 where groups are
# apart, near 0 where the border runs through a crowd. Below a mean of 0.5 there are no groups.
#
# Sources: Rousseeuw, "Silhouettes" (1987); Kaufman, Rousseeuw, "Finding Groups in Data" (1990), chapter 2, for the 0.5.

NO_CLUSTERS = 0.5


def silhouette(points: np.ndarray, labels: np.ndarray) -> float:
    """Mean silhouette, -1 to 1. Takes n x n memory: give it a sample of a few hundred points."""
    from scipy.spatial.distance import cdist  # takes half a second, as below

    groups, group = np.unique(labels, return_inverse=True)
    if len(groups) < 2:
        return 0.0
    member = labels[:, None] == groups  # [n, groups]
    sizes = member.sum(axis=0)
    totals = cdist(points, points) @ member  # [n, groups] distances of each point to all of a group
    inside = totals[member] / np.maximum(sizes[group] - 1, 1)
    outside = np.where(member, np.inf, totals / sizes).min(axis=1)
    widest = np.maximum(inside, outside)
    counts = (sizes[group] > 1) & (widest > 0)  # a point alone in its group has no silhouette: 0
    return float(((outside - inside)[counts] / widest[counts]).sum() / len(points))


def silhouettes(points: np.ndarray, seed: int = 0) -> dict[int, float]:
    """Mean silhouette of k groups, for k from 2 to 6.

    Args:
        points: [n, d]; lengths should come as logarithms, so that 100 and 200 are as far as 1,000 and 2,000.
    """
    from scipy.cluster.vq import kmeans, vq

    rng = np.random.default_rng(seed)
    some = points[rng.permutation(len(points))[:500]]
    centres = {k: kmeans(points, k, iter=20, thresh=0, rng=rng)[0] for k in range(2, min(6, len(points)) + 1)}
    return {k: silhouette(some, vq(some, found)[0]) for k, found in centres.items()}


def count_clusters(silhouettes: dict[int, float]) -> int:
    """The number of groups with the highest silhouette, or one if none reaches NO_CLUSTERS."""
    best = max(silhouettes, key=silhouettes.__getitem__, default=1)
    return best if silhouettes.get(best, 0.0) >= NO_CLUSTERS else 1
