"""Where the time of a step goes: a stopwatch that is put around the parts of a running engine."""

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from phase2_attention_kvcache.model import SamplingParams, Transformer
from phase3_paged_attention.paging import PagedKVCache
from phase4_scheduler.cpu.linear import CPULinear
from phase4_scheduler.engine import EngineConfig, LLMEngine

PARTS = (
    "decide", "prepare", "linear layers", "attention", "norms and the rest", "head", "sample", "hand out",
)  # fmt: skip


class StepTimer:
    """Seconds by part. A part that calls another one is not charged for it.

    >>> timer = StepTimer()
    >>> timer.watch(engine.core.scheduler, "schedule", "decide")
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.seconds: dict[str, float] = defaultdict(float)
        self._watched: list[tuple[Any, str]] = []
        self._inner: list[float] = []  # time spent in watched parts, by depth

    def watch(self, owner: Any, method: str, part: str) -> None:
        """From now on, charge calls of `owner.method` to `part`."""
        original: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            began = self._clock()
            try:
                return original(*args, **kwargs)
            finally:
                spent = self._clock() - began
                self.seconds[part] += spent - self._inner.pop()
                if self._inner:
                    self._inner[-1] += spent

        setattr(owner, method, timed)
        self._watched.append((owner, method))

    def stop(self) -> None:
        """Take the stopwatch off again. (What is watched hides the method of the class; so remove it.)"""
        for owner, method in reversed(self._watched):
            delattr(owner, method)
        self._watched.clear()


def watch_engine(engine: LLMEngine) -> StepTimer:
    """Put a stopwatch around every part of a step."""
    timer = StepTimer()
    timer.watch(engine, "step", "hand out")  # what no other part claims
    timer.watch(engine.core.scheduler, "schedule", "decide")
    timer.watch(engine.core.scheduler, "update", "decide")
    timer.watch(engine.core.runner, "execute", "prepare")
    timer.watch(engine.core.runner.kv_cache, "begin_step", "prepare")
    timer.watch(engine.model, "forward", "norms and the rest")
    timer.watch(engine.core.runner.kv_cache, "attend", "attention")
    timer.watch(engine.core.runner, "logits", "head")
    timer.watch(engine.core.runner.sampler, "sample", "sample")
    for block in engine.model.blocks:
        for module in block.modules():
            if isinstance(module, (nn.Linear, CPULinear)):
                timer.watch(module, "forward", "linear layers")
    return timer


def decoding_engine(
    model: Transformer, batch: int, context: int, steps: int, use_kernel: bool = True
) -> LLMEngine:
    """An engine in which `batch` requests of `context` tokens are about to decode.

    Their prompts are not computed: keys and values are noise, since speed does not depend on them.
    `use_kernel`: see `PagedKVCache`.
    """
    length = context + steps + 8
    num_blocks = batch * -(-length // 16) + 1
    limits = dict(max_num_seqs=batch, max_num_batched_tokens=batch * length, max_model_len=length)
    config = EngineConfig(**limits, num_blocks=num_blocks, enable_prefix_caching=False)
    cache = PagedKVCache(model.config, num_blocks, 16, model.dtype, model.device, use_kernel=use_kernel)
    engine = LLMEngine(model, None, config, kv_cache=cache)
    engine.core.runner.kv_cache.storage.data.normal_()
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=steps + 4)
    for i in range(batch):
        engine.add_request(str(i), [(7 * i + j) % 8000 for j in range(context)], params)
    hidden = torch.zeros(batch * context, model.config.d_model, dtype=model.dtype, device=model.device)
    engine.core.runner.execute = lambda scheduled: hidden  # hides the method of the class ...
    engine.step()
    del engine.core.runner.execute  # ... and no longer
    return engine


def time_decode(engine: LLMEngine, steps: int) -> dict[str, float]:
    """Median milliseconds of a decode step, by part."""
    engine.step()  # warms up
    timer = watch_engine(engine)
    rows = []
    for _ in range(steps):
        timer.seconds.clear()
        engine.step()
        rows.append([1e3 * timer.seconds[part] for part in PARTS])
    timer.stop()
    return dict(zip(PARTS, torch.tensor(rows).median(dim=0).values.tolist(), strict=True))
