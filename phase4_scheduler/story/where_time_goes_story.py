"""The chapters of where_time_goes.py, and its figure."""

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from typing import Any
from unittest import mock

import torch
from torch import nn

from labkit.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, TEAL, YELLOW, new_figure
from labkit.lab import Lab
from phase2_attention_kvcache.model import GPT2_124M, SamplingParams, Transformer
from phase3_paged_attention.paging import PagedKVCache, compiled_kernel
from phase4_scheduler.cpu import prepare
from phase4_scheduler.cpu.linear import CPULinear
from phase4_scheduler.engine import EngineConfig, LLMEngine

CONTEXT = 256
PARTS = (
    "decide", "prepare", "linear layers", "attention", "norms and the rest", "head", "sample", "hand out",
)  # fmt: skip
Parts = dict[str, float]  # milliseconds of a step, by part


def two_changes(lab: Lab) -> None:
    """A step before and after: keys read in place, weights packed once."""
    steps = 4 if lab.quick else 15
    batches = (1, 64) if lab.quick else (1, 16, 64)
    plain = Transformer.random(GPT2_124M, dtype=lab.args.dtype, seed=lab.seed)
    lab.title(f"A decode step at GPT-2's size, {lab.args.dtype}, {CONTEXT} tokens of context each")
    lab.say("""Before: keys and values of each user are copied together and then attended to, and the weights are passed
        unchanged. After: the kernel of phase 3 reads the keys in place, and the weights were packed once.""")

    def times_of(model: Transformer, name: str, **how: bool) -> dict[int, Parts]:
        return {
            batch: time_decode(decoding_engine(model, batch, CONTEXT, steps, **how), steps)
            for batch in lab.progress(batches, name)
        }

    before = times_of(plain, "before", use_kernel=False)
    model = prepare(plain)
    for block in model.blocks:
        block.most_few_rows = 0  # a layer in a single call shows no parts
    after = times_of(model, "after")
    show_parts(lab, before, "Before: milliseconds of a step, by part")
    show_parts(lab, after, "After: milliseconds of a step, by part")
    most = max(batches)
    if compiled_kernel() is not None:
        lab.predict(
            claim="attention-in-place",
            question=f"attention for {most} users, copied first / read in place",
            predicted=(1.2, 20),
            between=True,
            measured=before[most]["attention"] / after[most]["attention"],
            unit="x",
            kind="timing",
            note="""The copy reads keys and values, writes them, and attention reads them again: three times the bytes. Beside the copy
                there is the fused function that attends to it: it was made for many queries at a time, and here each row has one.""",
        )
    else:
        lab.say("(The compiled kernel is not available here: numba is missing.)")
    lab.predict(
        claim="scheduler-share",
        question=f"share of a step for {most} users that deciding takes, %",
        predicted=(0, 1),
        between=True,
        measured=100 * after[most]["decide"] / sum(after[most].values()),
        unit="%",
        kind="timing",
        note="Scheduler and block manager together. Python is slow, but there is little to do: no loop over tokens.",
    )
    lab.record(before=before, after=after)
    draw(lab, before, after)


def users(batch: int) -> str:
    return f"{batch} user{'s' if batch > 1 else ''}"


def show_parts(lab: Lab, parts: dict[int, Parts], title: str) -> None:
    last = parts[max(parts)]
    share = {part: f"{last[part] / sum(last.values()):.1%}" for part in PARTS}
    rows = [[part, *(times[part] for times in parts.values()), share[part]] for part in PARTS]
    rows.append(["together", *(sum(times.values()) for times in parts.values()), ""])
    lab.table(title, ["part", *map(users, parts), "share, most users"], rows)


def draw(lab: Lab, before: dict[int, Parts], after: dict[int, Parts]) -> None:
    gains = [f"{sum(before[batch].values()) / sum(after[batch].values()):.1f}" for batch in after]
    fig, (ax,) = new_figure(
        f"Keys in place, packed weights: {', '.join(gains)} times as fast for {', '.join(map(str, after))} requests",
        f"One decode step, GPT-2 124M, {CONTEXT} tokens of context each; {lab.where}",
        size=(7.2, 5.4),
    )
    both = (("before", before), ("after", after))
    rows = [(f"{users(batch)}, {when}", times[batch]) for batch in after for when, times in both]
    for y, (_, times) in enumerate(rows):
        left = 0.0
        for part, color in zip(PARTS, (GREY, RED, BLUE, ORANGE, PURPLE, TEAL, YELLOW, GREEN), strict=True):
            ax.barh(y, times[part], left=left, color=color, height=0.72, label=part if y == 0 else None)
            left += times[part]
        ax.text(left, y, f"  {left:.1f} ms", va="center", fontsize=9)
    ax.set_yticks(range(len(rows)), [name for name, _ in rows])
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="milliseconds", xlim=(0, 1.12 * max(sum(times.values()) for _, times in rows)))
    ax.legend(loc="upper right", fontsize=8.5)
    lab.figure(fig, "where_time_goes")


# ---------------------------------------------------------------------- a stopwatch around the parts of a running engine


class StepTimer:
    """Seconds by part. A part that calls another one is not charged for it.

    >>> timer = StepTimer()
    >>> timer.watch(engine.core.scheduler, "schedule", "decide")
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.seconds: dict[str, float] = defaultdict(float)
        self._watched = ExitStack()
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

        self._watched.enter_context(mock.patch.object(owner, method, timed))

    def stop(self) -> None:
        """Take the stopwatch off again."""
        self._watched.close()


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
    if compiled_kernel() is not None:
        timer.watch(import_module("phase4_scheduler.cpu.kernels"), "attend", "attention")
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
