"""Traffic for a model server: when requests come, how long their prompts (ISL) and their answers (OSL) are.

ISL is the input sequence length, the tokens of the prompt. OSL is the output sequence length, the tokens of
the answer. Traffic is either drawn from a pattern (chat, code, ...), or read from a trace: a log of real
requests with their times and lengths (see `trace_files.py`). Traces hold no texts, so the prompts are made
up, but two prompts share exactly the blocks that the trace says they share.

Source: vllm/benchmarks/serve.py (`get_request`) for bursty arrivals.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

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
        raise ValueError(f"rate is {rate}: requests a second, above 0 (inf: all at once)")


def arrival_times(n: int, rate: float, burstiness: float, rng: np.random.Generator) -> np.ndarray:
    """Times at which `n` requests arrive, `rate` a second on average. The first comes at 0.

    The gaps follow a gamma distribution with shape `burstiness`. At 1 that is the exponential distribution:
    a Poisson process, many independent users. Below 1 they come in bursts with long
    pauses, above 1 more evenly. The variance of a gap, over its squared mean, is 1 / burstiness.

    Args:
        rate: requests a second; infinity: all at once.

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


def fit_lengths(requests: Sequence[TrafficRequest], max_model_len: int) -> tuple[list[TrafficRequest], float]:
    """Lengths that fit a context, all shortened by one factor, so that their proportions stay.

    Returns:
        The requests, and the factor: 1 if they fit as they are.
    """
    longest = max(r.prompt_tokens + r.output_tokens for r in requests)
    factor = min(1.0, max_model_len / longest)
    fitting = []
    for r in requests:
        osl = max(1, math.floor(r.output_tokens * factor))
        # An output of one token stays as it is, so the prompt has to leave room.
        isl = max(1, min(math.floor(r.prompt_tokens * factor), max_model_len - osl))
        fitting.append(replace(r, prompt_tokens=isl, output_tokens=osl))
    return fitting, factor


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

    def _block(self, hash_id: int) -> list[int]:
        """The tokens that this hash id stands for, the same each time."""
        if hash_id not in self._blocks:
            self._blocks[hash_id] = self._draw(self.block_tokens, 1, hash_id)
        return self._blocks[hash_id]

    def prompt(self, request: TrafficRequest, number: int) -> list[int]:
        """The prompt of request `number`: its named blocks, then tokens of its own."""
        shared = itertools.chain.from_iterable(map(self._block, request.hash_ids))
        tokens = list(itertools.islice(shared, request.prompt_tokens))
        return tokens + self._draw(request.prompt_tokens - len(tokens), 2, number)
