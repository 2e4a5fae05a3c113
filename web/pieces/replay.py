"""Replay an engine's run step by step, from what `record` writes down (phase4_scheduler/features/recording.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine import LLMEngine
from phase4_scheduler.features.recording import record
from web.pieces.piece import Piece, in_words

SHOWN = (
    "step", "tokens", "computed", "blocks", "preempted", "finished", "running", "waiting", "free_blocks",
    "taken", "hit", "freed", "evicted",
)  # fmt: skip
"""The fields of the engine's events that are kept. Times differ from run to run, and the piece does not show them."""


@dataclass
class Recording:
    """A run of an engine.

    Attributes:
        events: the engine's, each with two things added: `arrived` (names) and `said` (name -> new text); with
            speculative decoding also `drafts` (name -> words, and how many of them were accepted).
        requests: name -> prompt and its number of tokens.
    """

    budget: int
    num_blocks: int
    block_size: int
    events: list[dict[str, Any]] = field(default_factory=list)
    requests: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def texts(self) -> dict[str, str]:
        """Name -> the whole answer."""
        return {name: "".join(event["said"].get(name, "") for event in self.events) for name in self.requests}

    @classmethod
    def of(cls, engine: LLMEngine, arrivals: Sequence[tuple[int, str, str, SamplingParams]]) -> Recording:
        """Run an engine on requests that arrive over time, and record it until all are finished.

        Args:
            engine: idle.
            arrivals: (step before which the request arrives, counted from 1; name; prompt; parameters).
        """
        events: list[dict[str, Any]] = []
        manager = engine.core.block_manager
        run = cls(
            engine.core.scheduler.config.max_num_batched_tokens,
            manager.num_blocks - 1,
            manager.block_size,
            events,
        )
        waiting, step = sorted(arrivals, key=lambda a: a[0]), 0
        record(engine, events.append)
        try:
            while waiting or engine.has_unfinished_requests:
                step += 1
                arrived = []
                while waiting and (waiting[0][0] <= step or not engine.has_unfinished_requests):
                    _, name, prompt, params = waiting.pop(0)
                    engine.add_request(name, prompt, params)
                    arrived.append(name)
                    run.requests[name] = {
                        "prompt": prompt,
                        "prompt_tokens": len(engine.tokenizer.encode(prompt)),
                    }
                said = {output.request_id: output.text for output in engine.step()}
                shown = {k: events[-1][k] for k in SHOWN} | {"arrived": arrived, "said": said}
                if "drafted" in events[-1]:
                    shown["drafts"] = _drafts(events[-1], engine.tokenizer)
                events[-1] = shown
        finally:
            record(engine, None)
        return run


def _drafts(event: dict[str, Any], tokenizer: BPETokenizer) -> dict[str, dict[str, Any]]:
    """Return the drafts of a step as words, by request, and how many of them were accepted."""
    return {
        name: {
            "words": [tokenizer.decode([token]) if token >= 0 else "" for token in drafted],
            "accepted": event["accepted"][name],
        }
        for name, drafted in event["drafted"].items()
        if drafted
    }


def replay_piece(recording: Recording) -> Piece:
    """Make the piece that steps through a run, forwards and backwards."""
    names = list(recording.requests)
    width = max(6, *(len(n) + 1 for n in names))
    lines = ["step  " + "".join(f"{n:>{width}}" for n in names) + "   free blocks"]
    for number, event in enumerate(recording.events, 1):
        row = "".join(f"{event['tokens'].get(n, '·'):>{width}}" for n in names)
        gone = f"   {', '.join(event['preempted'])} preempted" if event["preempted"] else ""
        lines.append(f"{number:>4}  {row}{event['free_blocks']:>14}{gone}")
    what = "Tokens that each user computes in a step:"
    return Piece("replay", vars(recording), in_words("A run to step through.", what, lines))
