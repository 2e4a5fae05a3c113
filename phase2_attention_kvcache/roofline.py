"""The roofline: what limits a step, arithmetic or memory?

A processor does two things: it fetches numbers from memory, and it computes with them. Each has a top
speed, and a step can be no faster than the slower of the two allows. Which one it is depends on a single
figure, the arithmetic intensity: operations done for each byte fetched.

- Decode, one user: each weight is fetched, used for one multiplication and one addition, and dropped.
  In FP16 that is one operation a byte. Memory is the limit, and the arithmetic units idle.
- Prefill: each weight is fetched once and used for every token of the prompt. Arithmetic is the limit.

You will see both ceilings of this machine measured, then steps of 1 to 1,024 tokens placed under them,
and the time of each predicted before it is measured.

Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model" (2009).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from labkit.figures import BLUE, GREY, INK, ORANGE, new_figure, plain_numbers
from labkit.lab import Lab, run_lab
from labkit.machine import time_calls
from phase2_attention_kvcache.blocks import ModelConfig
from phase2_attention_kvcache.caches import ContiguousKVCache
from phase2_attention_kvcache.checkpoint import parse_dtype
from phase2_attention_kvcache.transformer import GPT2_124M, Transformer


@dataclass(frozen=True)
class Ceilings:
    """Top speeds of a machine, measured.

    Attributes:
        bandwidth: bytes a second that can be read from main memory.
        rate: floating point operations a second in a large matrix product (an addition and a
            multiplication count as two).
    """

    bandwidth: float
    rate: float

    @property
    def ridge(self) -> float:
        """Operations a byte at which both limits meet. Left of it memory decides, right of it arithmetic."""
        return self.rate / self.bandwidth

    def seconds(self, work: Work) -> float:
        """The shortest time that a piece of work can take."""
        return max(work.operations / self.rate, work.bytes / self.bandwidth)


@dataclass(frozen=True)
class Work:
    """What a step has to do: operations, and bytes that must come from memory."""

    operations: float
    bytes: float

    @property
    def intensity(self) -> float:
        return self.operations / self.bytes


class Step(NamedTuple):
    """A step of `tokens` tokens: what it has to do, the shortest time that can take, the time it took."""

    tokens: int
    work: Work
    floor: float
    seconds: float


def limit_of(small: Step, large: Step, ceilings: Ceilings, overhead: float) -> tuple[str, str]:
    """What limits a step, told from measured times: "memory", "arithmetic" or "overhead"; and why.

    If more tokens cost time in proportion, arithmetic is the limit. If they come nearly free, it is what
    both steps have in common: fetching the weights, or starting many operations. How long the starting
    takes is known from a model so narrow that there is nothing to fetch (`overhead`, seconds).
    """
    times = large.seconds / small.seconds
    grows = math.log(times) / math.log(large.tokens / small.tokens)
    why = f"{large.tokens / small.tokens:.0f} times the tokens took {times:.1f} times as long. "
    if grows > 0.5:
        rate = large.work.operations / large.seconds / ceilings.rate
        return "arithmetic", why + f"The step reached {rate:.0%} of the arithmetic."
    speed = small.work.bytes / small.seconds
    why += f"Of its {1e3 * small.seconds:.1f} ms, {1e3 * overhead:.1f} are overhead (the same steps on a model 64 wide). "
    why += (
        f"It read the weights at {speed / 1e9:.0f} GB/s, {speed / ceilings.bandwidth:.0%} of the bandwidth."
    )
    return ("memory" if overhead < small.seconds / 2 else "overhead"), why


def narrow(config: ModelConfig) -> ModelConfig:
    """As many operations as the model, on next to no data."""
    return dataclasses.replace(
        config, vocab_size=1024, d_model=64, d_ff=64, head_dim=8, max_context=64, rope_scaling=None
    )


@torch.inference_mode()
def measure_ceilings(device: str, dtype: str | torch.dtype, quick: bool = False) -> Ceilings:
    """Read a tensor far larger than any cache, and multiply two large matrices. The best of several."""
    dtype = parse_dtype(dtype)
    repeats = 8 if quick else 20
    megabytes, side = (256, 2048) if device == "cpu" else (1024, 8192)
    if device == "cpu" and dtype == torch.float16:
        side = 512  # many CPUs compute in float16 only by way of float32, a hundred times slower
    # A sum reads every byte and writes almost nothing.
    numbers = torch.ones(megabytes * 2**20 // 4, dtype=torch.float32, device=device)
    read = min(time_calls(numbers.sum, device, repeats))
    bandwidth = numbers.nbytes / read
    del numbers
    # Random numbers: zeros would cost a GPU less power and let it run faster than it really can.
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    multiply = min(time_calls(lambda: a @ b, device, repeats))
    return Ceilings(bandwidth, 2 * side**3 / multiply)


def work_of_step(config: ModelConfig, new_tokens: int, context: int, bytes_per_number: int) -> Work:
    """What one step costs: `new_tokens` tokens of one sequence are computed on top of `context` older ones.

    Each weight is used for one multiplication and one addition a token. Attention adds four operations
    for each pair of (query, key) numbers: two for the score, two for the weighted sum. Bytes: all weights
    once, the old keys and values read, the new ones written. The vectors between the layers are small
    and stay in the processor's caches; they are left out.
    """
    c = config
    per_layer = c.d_model * c.head_dim * (2 * c.num_heads + 2 * c.num_kv_heads)
    per_layer += c.d_model * c.d_ff * (2 if c.family == "gpt2" else 3)
    blocks, head = c.num_layers * per_layer, c.d_model * c.vocab_size
    pairs = sum(context + i + 1 for i in range(new_tokens))  # a token sees itself and all before it
    attention = 4 * c.num_layers * c.num_heads * c.head_dim * pairs
    operations = 2 * new_tokens * blocks + 2 * head + attention  # scores for the last token only
    kv = 2 * c.num_layers * c.num_kv_heads * c.head_dim * (context + new_tokens)
    return Work(operations, (blocks + head + kv) * bytes_per_number)


@torch.inference_mode()
def measure_step(model: Transformer, new_tokens: int, repeats: int) -> float:
    """Seconds of a step that computes `new_tokens` tokens of a new sequence. The best of several."""
    ids = torch.arange(new_tokens, device=model.device) % model.config.vocab_size
    positions = torch.arange(new_tokens, device=model.device)

    def step() -> None:
        model.logits(model(ids, positions, ContiguousKVCache(model.config))[-1:])

    return min(time_calls(step, model.device.type, repeats, warmup=2))


def story(lab: Lab) -> None:
    dtype = lab.args.dtype
    size = torch.finfo(parse_dtype(dtype)).bits // 8
    if lab.args.model == "gpt2-124m":
        model = Transformer.random(GPT2_124M, dtype, lab.device, lab.seed)
        name = "GPT-2's shape, 124M random weights"
    else:
        model = Transformer.from_pretrained(lab.args.model, dtype, lab.device)
        name = lab.args.model
    config = model.config

    lab.title("Two ceilings of this machine")
    ceilings = measure_ceilings(lab.device, dtype, lab.quick)
    lab.table(
        f"{lab.device}, {dtype}", ["ceiling", "value", "unit"],
        [["read from memory", ceilings.bandwidth / 1e9, "GB/s"],
         ["large matrix product", ceilings.rate / 1e9, "GFLOP/s"],
         ["ridge: they meet at", ceilings.ridge, "operations a byte"]],
        note="A data sheet's figures are higher. These are what a program gets.",
    )  # fmt: skip

    lab.title(f"Steps of 1 to 1,024 tokens: {name}")
    sizes = [1, 4, 16, 64, 256, 1024] if lab.quick else [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    sizes = [n for n in sizes if n <= config.max_context]
    steps = []
    for n in lab.progress(sizes, "timing steps"):
        work = work_of_step(config, n, 0, size)
        steps.append(Step(n, work, ceilings.seconds(work), measure_step(model, n, 3 if lab.quick else 6)))

    few = next(step for step in steps if step.tokens >= 16)
    overhead = measure_step(Transformer.random(narrow(config), dtype, lab.device), 1, 10)
    decode = limit_of(steps[0], few, ceilings, overhead)
    prefill = limit_of(steps[-2], steps[-1], ceilings, overhead)
    for claim, what, predicted, (limit, why) in (
        ("decode-memory-bound", "decode (1 token a step)", "memory", decode),
        ("prefill-compute-bound", f"prefill ({steps[-1].tokens:,} tokens a step)", "arithmetic", prefill),
    ):
        question = f"what limits {what}: memory, arithmetic or overhead"
        lab.predict(claim, question, predicted=predicted, measured=limit, kind="timing", note=why)
    if any(step.seconds < 0.95 * step.floor for step in steps):
        lab.say("""Some steps beat their floor. So a ceiling was measured too low: something else kept this
            machine busy at that moment. Close it and run again.""")
    lab.table(
        "Predicted from the roofline, then measured",
        ["tokens", "operations a byte", "floor, ms", "measured, ms", "measured / floor", "limit"],
        [[n, w.intensity, 1e3 * floor, 1e3 * s, s / floor,
          "memory" if w.intensity < ceilings.ridge else "arithmetic"] for n, w, floor, s in steps],
        note="The floor is what no program can beat on this machine. Above it: small operations between "
             "the large ones, Python, routines that do not reach the peak. Below it: a small model whose weights fit in the processor's own "
             "cache, which is faster than main memory.",
    )  # fmt: skip
    together = next((n for n, _, _, s in reversed(steps) if s < 2 * steps[0].seconds), 1)
    lab.say(f"""What it means: a step of {together} tokens takes less than twice as long as a step of one.
        So a server that lets {together} users share each step serves them for less than the price of two. (Nearly:
        each user also needs scores and a cache of their own.) That is batching, and Phase 4 is about it.""")
    lab.record(
        bandwidth_gb_s=ceilings.bandwidth / 1e9,
        rate_gflop_s=ceilings.rate / 1e9,
        steps=[dict(tokens=n, intensity=w.intensity, floor_s=f, measured_s=s) for n, w, f, s in steps],
    )
    lab.figure(draw_roofline(ceilings, steps, name, lab.device, dtype), "roofline")


def draw_roofline(ceilings: Ceilings, steps: list, name: str, device: str, dtype: str):
    fig, (ax,) = new_figure(
        "Decode runs along the memory slope, prefill nears the arithmetic roof",
        f"{name}, {device}, {dtype}; a number is the tokens computed in the step",
        size=(8.4, 5.2),
    )
    low, high = steps[0][1].intensity / 2, max(steps[-1][1].intensity, ceilings.ridge) * 2
    ax.plot(
        [low, ceilings.ridge, high],
        [low * ceilings.bandwidth / 1e9, ceilings.rate / 1e9, ceilings.rate / 1e9],
        color=INK,
        linewidth=2.2,
    )
    ax.axvline(ceilings.ridge, color=GREY, linestyle=":", linewidth=1.2)
    for n, work, _, seconds in steps:
        y = work.operations / seconds / 1e9
        colour = BLUE if work.intensity < ceilings.ridge else ORANGE
        ax.plot(work.intensity, y, "o", color=colour, markersize=8)
        ax.annotate(f"{n:,}", (work.intensity, y), xytext=(0, -14), textcoords="offset points", ha="center")
    ax.set(xlabel="operations a byte", ylabel="GFLOP/s", xscale="log", yscale="log", xlim=(low, high))
    ax.set_ylim(bottom=ax.get_ylim()[0] / 1.5)  # room for the number below the lowest point
    plain_numbers(ax)
    middle = (low * ceilings.ridge) ** 0.5
    ax.text(
        middle / 1.15,
        middle * ceilings.bandwidth / 1e9,
        f"memory: {ceilings.bandwidth / 1e9:.0f} GB/s",
        color=BLUE,
        ha="center",
        va="bottom",
        rotation=math.degrees(math.atan(ceilings.bandwidth / 1e9)),
        rotation_mode="anchor",
        transform_rotates_text=True,
    )
    ax.annotate(
        f"arithmetic: {ceilings.rate / 1e9:,.0f} GFLOP/s",
        (high, ceilings.rate / 1e9),
        xytext=(-4, 6),
        textcoords="offset points",
        ha="right",
        color=ORANGE,
    )
    return fig


def main(argv: list[str] | None = None) -> int:
    return run_lab(
        story,
        __doc__,
        options=("device", "dtype", "seed", "quick"),
        add_arguments=lambda parser: parser.add_argument(
            "--model",
            default="gpt2-124m",
            metavar="NAME",
            help="gpt2-124m (GPT-2's shape, random weights, the default), tales, gpt2 or a model folder",
        ),
        argv=argv,
    )


if __name__ == "__main__":
    raise SystemExit(main())
