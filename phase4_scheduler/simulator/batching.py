"""Static batches beside continuous batching, on the same engine with the same model."""

import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from phase2_attention_kvcache.model import SamplingParams
from phase3_paged_attention.traffic import PATTERNS
from phase4_scheduler.engine import LLMEngine
from phase4_scheduler.features.recording import record
from phase4_scheduler.simulator.traffic import PRIORITIES


class Job(NamedTuple):
    """A user's request: a prompt, and how many tokens of an answer are wanted."""

    name: str
    prompt: list[int]
    osl: int


@dataclass
class Served:
    """How a set of jobs went.

    Attributes:
        seconds: of all steps together.
        written_step: in which step each job's last token was written.
        done_step, done_seconds: when its answer was handed to its user.
        events: the engine's record of each step.
    """

    seconds: float = 0.0
    written_step: dict[str, int] = field(default_factory=dict)
    done_step: dict[str, int] = field(default_factory=dict)
    done_seconds: dict[str, float] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    token_ids: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    @property
    def steps(self) -> int:
        return len(self.events)

    @property
    def tokens(self) -> int:
        return sum(map(len, self.token_ids.values()))

    def idle_share(self, batch_size: int) -> float:
        """Share of the places in all steps' batches in which nothing was written that a user wanted."""
        return 1 - self.tokens / (batch_size * self.steps)


def serve_continuously(engine: LLMEngine, jobs: Sequence[Job]) -> Served:
    """Hand everything to the engine at once. It keeps its batch full by itself."""
    return _serve(engine, [jobs], pad=False, static=False)


def serve_statically(engine: LLMEngine, jobs: Sequence[Job], batch_size: int, pad: bool = True) -> Served:
    """Batch after batch: the next one starts when all of this one is done, and answers are handed out then.

    Args:
        pad: every row of a batch goes on to the end of its longest answer, as in `generate` of most
            libraries; what is written past a row's own end is discarded. False: finished rows cost nothing
            more, only their places stay empty.
    """
    batches = [jobs[i : i + batch_size] for i in range(0, len(jobs), batch_size)]
    return _serve(engine, batches, pad, static=True)


def _serve(engine: LLMEngine, batches: Sequence[Sequence[Job]], pad: bool, static: bool) -> Served:
    engine.core.block_manager.reset_prefix_cache()
    served = Served()
    record(engine, served.events.append)
    began = time.perf_counter()
    for batch in batches:
        wanted = {job.name: job.osl for job in batch}
        for job in batch:
            max_tokens = max(wanted.values()) if pad else job.osl
            params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
            engine.add_request(job.name, job.prompt, params)
        handed_out = []
        while engine.has_unfinished_requests:
            for output in engine.step():
                name = output.request_id
                written = served.token_ids[name]
                if len(written) == wanted[name]:
                    continue  # padding
                written += output.token_ids
                if len(written) == wanted[name]:
                    served.written_step[name] = served.steps
                    handed_out.append(name)
            if not static or not engine.has_unfinished_requests:
                served.done_step |= dict.fromkeys(handed_out, served.steps)
                served.done_seconds |= dict.fromkeys(handed_out, time.perf_counter() - began)
                handed_out.clear()
    served.seconds = time.perf_counter() - began
    record(engine, None)
    return served


def mixed_jobs(count: int, vocab_size: int, shrink: int, seed: int) -> list[Job]:
    """`count` requests, each of one of the article's three patterns, all lengths divided by `shrink`."""
    rng = random.Random(seed)
    jobs = []
    for i in range(count):
        pattern = PATTERNS[rng.choice(list(PRIORITIES))]
        isl, osl = (max(1, rng.randint(*lengths) // shrink) for lengths in (pattern.isl, pattern.osl))
        jobs.append(Job(f"{pattern.name}-{i}", [rng.randrange(vocab_size) for _ in range(isl)], osl))
    return jobs
