"""An attacker of the engine: random traffic, and everything that may go wrong while it is served.

A case is an engine with random limits, forty requests with random parameters, and faults: a model that breaks on some
requests or for once, a sampler that raises, listeners that raise, add or abort, Ctrl-C in the middle of a step. What must
hold: only those fail that are to blame; all others get, token by token, what they get alone on an undisturbed engine that
finds no prefix and keeps every block; and in the end nothing is left, no request and no block.
"""

import random
import traceback
import warnings
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from phase2_attention_kvcache.model import ModelConfig, SamplingParams, Transformer
from phase3_paged_attention.paging import BlockManager
from phase4_scheduler.engine import EngineConfig, LLMEngine

VOCAB, CONTEXT = 97, 64
POISON = 13  # the model breaks on a step with this token in it
MOST_STEPS = 4000


class Breaking(torch.nn.Module):
    """A model that breaks: always on poison, and on any step when `once` says so."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model, self.config, self.device, self.dtype = model, model.config, model.device, model.dtype
        self.once: BaseException | None = None

    def forward(self, token_ids, positions, kv):
        error, self.once = self.once, None
        if POISON in token_ids.tolist():  # nothing is written to the cache
            raise RuntimeError("this token burns")
        hidden = self.model(token_ids, positions, kv)
        if error is not None:  # all is written
            raise error
        return hidden

    def logits(self, hidden):
        return self.model.logits(hidden).index_fill(1, torch.tensor([POISON]), -torch.inf)  # never an answer


MODELS = {  # family, windows of the two layers
    "gpt2": ("gpt2", ()),
    "llama": ("llama", ()),
    "local": ("mistral", (5, 9)),  # a block goes when it has left the wider window
    "local and global": ("mistral", (5, None)),  # the global layer keeps them all
}


def make_model(family: str, windows: tuple[int | None, ...]) -> Transformer:
    """Small, and in float64: so rounding never decides what is likelier, however requests are batched."""
    shape = dict(vocab_size=VOCAB, d_model=16, num_layers=2, num_heads=2, max_context=CONTEXT, d_ff=24)
    kv = dict(num_kv_heads=2 if family == "gpt2" else 1, head_dim=8)
    own = dict(tied=True, eos_token_ids=(96,), windows=windows)
    config = ModelConfig("random", family, norm_eps=1e-5, **own, **shape, **kv)
    model = Transformer.random(config).double()
    generator = torch.Generator().manual_seed(5)
    for weights in model.parameters():
        if weights.ndim == 2:
            weights.data.normal_(0, 0.5, generator=generator)
    return model


@cache
def small_models() -> dict[str, Transformer]:
    return {name: make_model(*choices) for name, choices in MODELS.items()}


def random_config(rng: random.Random) -> tuple[EngineConfig, dict[str, Any]]:
    """Settings of the core, and of features."""
    swap = rng.choice([0, 0, 8])
    features: dict[str, Any] = {"preemption": "swap", "num_swap_blocks": swap} if swap else {}
    config = EngineConfig(
        max_num_seqs=rng.choice([3, 4, 8, 16]),
        max_num_batched_tokens=rng.choice([64, 80, 256]),
        num_blocks=rng.choice([18, 24, 34, 60]),
        block_size=rng.choice([2, 4]),
        enable_prefix_caching=rng.random() < 0.8,
        chunked_prefill=rng.random() < 0.8,
        long_prefill_token_threshold=rng.choice([0, 0, 5]),
        policy=rng.choice(["fcfs", "priority"]),
    )
    own = random.Random(repr(config))
    if own.random() < 0.3:
        lookup = {"prompt_lookup_min": 1, "prompt_lookup_max": 3}
        drafts = {"method": "ngram", "num_speculative_tokens": own.choice([1, 3])}
        features["speculative_config"] = drafts | lookup
    return config, features


def random_params(rng: random.Random) -> SamplingParams:
    drawn = rng.random() < 0.6
    return SamplingParams(
        n=rng.choice([1, 1, 2, 3]) if drawn else 1,
        temperature=rng.choice([0.5, 1.0, 3.0, 1e30]) if drawn else 0,
        seed=rng.randrange(2**40) if drawn else None,
        top_p=rng.choice([1, 0.9, 0.3, 1e-46]),
        top_k=rng.choice([0, 0, 5, 200]),
        min_p=rng.choice([0, 0.1, 1]),
        repetition_penalty=rng.choice([1, 1.2, 0.8]),
        presence_penalty=rng.choice([0, 1]),
        logit_bias=rng.choice([None, {3: 2.5}, {96: -100}]),
        max_tokens=rng.choice([1, 2, 5, 12, 20]),
        min_tokens=rng.choice([0, 0, 1]),
        stop_token_ids=rng.choice([(), (), (7, 8)]),
        ignore_eos=rng.random() < 0.5,
        logprobs=rng.choice([None, None, 0, 3]),
        prompt_logprobs=rng.choice([None, None, None, 1]),
    )


def run_case(rng: random.Random, models: dict[str, Transformer]) -> list[str]:
    """One engine from its first request to its last. Returns what did not hold."""
    model = models[rng.choice(sorted(models))]
    breaking, (config, features) = Breaking(model), random_config(rng)
    engine = LLMEngine(breaking, None, config, **features)
    keeps_all = BlockManager(200, config.block_size, enable_prefix_caching=False)
    alone = LLMEngine(Breaking(model), None, replace(config, max_num_seqs=16), block_manager=keeps_all)
    beginnings = [[rng.randrange(20, VOCAB - 1) for _ in range(24)] for _ in range(3)]
    requests: dict[str, tuple[list[int], SamplingParams]] = {}
    tokens: dict[tuple[str, int], list[int]] = {}
    ends: dict[str, str] = {}
    errors: dict[str, str] = {}
    may_fail: set[str] = set()  # poisoned, or with a listener that raises, or for which the sampler raises
    findings: list[str] = []
    sample = engine.core.runner.sampler.sample

    def sampling(logits, params, prompt_ids, *rest):
        answer = sample(logits, params, prompt_ids, *rest)  # generators have moved
        if any(prompt[-1] == POISON + 1 for prompt in prompt_ids):
            raise rng.choice([ValueError, IndexError, MemoryError])("a sampler's mistake")
        return answer

    engine.core.runner.sampler.sample = sampling

    def listen(output) -> None:
        for part in output.outputs:
            tokens.setdefault((output.request_id, part.index), []).extend(part.token_ids)
        if output.finished:
            ends[output.request_id] = output.finish_reason or "stop"
        if output.request_id.startswith("odd") and rng.random() < 0.1:
            odd = rng.choice(["raise", "abort self", "abort other", "add"])
            if odd == "raise":
                may_fail.add(output.request_id)
                raise KeyError("a listener's mistake")
            if odd == "abort self":
                engine.abort(output.request_id)
            elif odd == "abort other":
                engine.abort(rng.choice(sorted(requests)))
            else:
                add()

    def add() -> None:
        kind = rng.choice(["", "", "", "odd", "poisoned", "mis-sampled"])
        request_id = f"{kind}{len(requests)}"
        prompt = rng.choice(beginnings)[: rng.randrange(25)]
        prompt = prompt + [rng.randrange(20, VOCAB - 1) for _ in range(rng.randrange(1, 10))]
        if kind == "poisoned":
            prompt.insert(rng.randrange(len(prompt)), POISON)
        if kind == "mis-sampled":
            prompt.append(POISON + 1)
        if kind in ("poisoned", "mis-sampled"):
            may_fail.add(request_id)
        params = random_params(rng)
        try:
            engine.add_request(request_id, prompt, params, priority=rng.randrange(3), on_output=listen)
        except ValueError as error:
            if "\n" in str(error):
                findings.append(f"{request_id} was refused in several lines: {error}")
            return
        requests[request_id] = (prompt, params)

    for step in range(MOST_STEPS):
        if len(requests) < 40 and rng.random() < 0.6:
            add()
        if rng.random() < 0.02:
            breaking.once = rng.choice([RuntimeError("once"), MemoryError("once"), KeyboardInterrupt()])
        if rng.random() < 0.02:
            engine.core.block_manager.reset_prefix_cache()
        try:
            if rng.random() < 0.02 and requests:
                engine.abort(rng.choice(sorted(requests)))
            for output in engine.step():
                if output.error:  # its listener, which may have raised it, is not told
                    ends[output.request_id], errors[output.request_id] = "error", output.error
        except KeyboardInterrupt:
            pass
        if step % 8 == 0:
            engine.core.block_manager.check_integrity()
        if len(requests) >= 40 and not engine.has_unfinished_requests:
            break
    else:
        findings.append("requests are left after 4,000 steps")

    manager = engine.core.block_manager
    manager.check_integrity()
    left = engine.core.requests or engine.core.scheduler.has_requests
    if left or manager.num_free_blocks != manager.num_blocks - 1:
        findings.append("something is left when all requests have ended")
    for request_id, (prompt, params) in requests.items():
        end = ends.get(request_id)
        if end is None or (end == "error" and request_id not in may_fail):
            findings.append(f"{request_id} ended with {end}: {errors.get(request_id)}")
        if POISON in prompt:
            continue
        for part in alone.generate([prompt], params)[0].outputs:
            got = tokens.get((request_id, part.index), [])
            whole = end not in ("error", "abort")
            if got != (part.token_ids if whole else part.token_ids[: len(got)]):
                findings.append(f"{request_id}, answer {part.index}: {got} is not {part.token_ids} ({end})")
    return findings


def try_engine(rng: random.Random) -> list[str]:
    """A case. Returns what did not hold."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of steps that are computed one by one
        try:
            return run_case(rng, small_models())
        except Exception:
            return [traceback.format_exc()]
