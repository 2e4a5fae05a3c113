"""The engine: text in, text out, for many users at a time.

Each step serves all requests; one that ends leaves at once, and one that waits takes its place in the next step.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from exercises.capstone.parts import course_part

from .blocks import BlockManager
from .cache import PagedCache, kv_bytes, users_that_fit
from .model import Model, choose
from .scheduler import Limits, Request, Scheduled, Scheduler
from .tokenizer import Streamer, Tokenizer

MEMORY = 64 << 20  # bytes for weights, keys and values

percentile, goodput = course_part("p4e5_percentiles_goodput")


@dataclass(frozen=True)
class Params:
    """How to choose tokens, and how many. temperature 0: always the likeliest one."""

    max_tokens: int = 16
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None


@dataclass
class User:
    """What belongs to a request beside its tokens. times: when each token of the answer was there, in seconds."""

    request: Request
    params: Params
    generator: torch.Generator | None
    arrival: float
    streamer: Streamer = field(default_factory=Streamer)
    times: list[float] = field(default_factory=list)


class Engine:
    """Serves many requests with one model: `folder` holds a GPT-2 in Hugging Face's layout."""

    def __init__(
        self, folder: Path, num_blocks: int | None = None, block_size: int = 16, limits: Limits | None = None
    ) -> None:
        self.tokenizer, self.model = Tokenizer(folder / "tokenizer.json"), Model(folder)
        if num_blocks is None:  # a block is a user who needs room for `block_size` tokens
            weight_bytes = sum(w.nbytes for w in self.model.weights.values())
            per_token = int(kv_bytes(self.model.config, 4))  # a function that divides gives a float
            num_blocks = users_that_fit(MEMORY, weight_bytes, per_token, block_size)
        self.cache = PagedCache(self.model, num_blocks, block_size)
        limits = limits or Limits(max_model_len=self.model.max_context)
        self.scheduler = Scheduler(limits, BlockManager(num_blocks, block_size))
        self.users: dict[str, User] = {}  # by name, those that have ended too

    @property
    def has_requests(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting)

    def add_request(self, name: str, prompt: str, params: Params) -> None:
        """Queue up a request. Raises ValueError: its name is in use, or it could never be served."""
        ids, limits, manager = self.tokenizer.encode(prompt), self.scheduler.limits, self.scheduler.manager
        longest = min(len(ids) + params.max_tokens, limits.max_model_len)
        if not ids or len(ids) >= limits.max_model_len:
            raise ValueError(f"a prompt has 1 to {limits.max_model_len - 1} tokens, and this one {len(ids)}")
        if longest - 1 > (manager.num_blocks - 1) * manager.block_size:
            raise ValueError(f"{longest} tokens do not fit the cache: lower max_tokens, or add memory")
        if name in self.users and not self.users[name].request.finish_reason:
            raise ValueError(f"there is a request {name!r} already: give each a name of its own")
        request = Request(name, ids, params.max_tokens, frozenset({self.model.eos_token_id}))
        generator = None if params.seed is None else torch.Generator().manual_seed(params.seed)
        self.users[name] = User(request, params, generator, time.perf_counter())
        self.scheduler.waiting.append(request)

    @torch.inference_mode()
    def step(self) -> list[tuple[str, str, str | None]]:
        """Schedule, execute, choose, update, hand out: (name, new text, why it ended) of each request that grew."""
        scheduled = self.scheduler.schedule()
        grown = [s.request for s in scheduled if s.samples]
        tokens = self.execute(scheduled) if scheduled else []
        self.scheduler.update(grown, tokens)
        now, outputs = time.perf_counter(), []
        for request, token in zip(grown, tokens):
            user = self.users[request.name]
            user.times.append(now)
            text = user.streamer.push(self.tokenizer.token_bytes[token])
            if request.finish_reason:
                text += user.streamer.finish()
            outputs.append((request.name, text, request.finish_reason))
        return outputs

    def execute(self, scheduled: list[Scheduled]) -> list[int]:
        """All tokens of the step through the model in one row; a token for each request that samples."""
        ids = [t for s in scheduled for t in s.request.token_ids[s.first : s.first + s.num_tokens]]
        positions = [p for s in scheduled for p in range(s.first, s.first + s.num_tokens)]
        self.cache.begin_step([(s.request.blocks, s.first, s.num_tokens) for s in scheduled])
        hidden = self.model.forward(torch.tensor(ids), torch.tensor(positions), self.cache.attend)
        tokens, end = [], 0
        for s in scheduled:
            end += s.num_tokens
            if s.samples:
                user = self.users[s.request.name]
                logits = self.model.logits(hidden[end - 1 : end])[0]
                tokens.append(choose(logits, user.params.temperature, user.params.top_p, user.generator))
        return tokens

    def generate(self, prompts: list[str], params: list[Params]) -> list[list[int]]:
        """The token ids of the answers, when all are complete."""
        names = [f"user {len(self.users) + i}" for i in range(len(prompts))]
        for name, prompt, own in zip(names, prompts, params, strict=True):
            self.add_request(name, prompt, own)
        while self.has_requests:
            self.step()
        requests = [self.users[name].request for name in names]
        return [request.token_ids[request.num_prompt_tokens :] for request in requests]

    def stream(self, prompt: str, params: Params) -> Iterator[str]:
        """The answer to one user, as it is written."""
        name = f"user {len(self.users)}"
        self.add_request(name, prompt, params)
        while self.has_requests:
            yield from (text for whose, text, _ in self.step() if whose == name)

    def report(self, ttft_slo: float, tpot_slo: float) -> dict[str, float]:
        """Figures of all answers so far, in seconds, and the goodput in requests per second."""
        served = [(user.arrival, user.times) for user in self.users.values() if user.times]
        ttfts = [times[0] - arrival for arrival, times in served]
        figures = {f"TTFT p{rank}": percentile(ttfts, rank) for rank in (50, 95)}
        return figures | {"goodput": goodput(served, ttft_slo, tpot_slo)}
