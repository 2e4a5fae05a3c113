"""The figures of the KV cache's story."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from labkit.figures import BLUE, GREEN, GREY, ORANGE, new_figure, plain_numbers
from phase2_attention_kvcache.story.step_times import StepTimes


def draw_speedup(new: np.ndarray, naive: np.ndarray, cached: np.ndarray):
    fig, (left, right) = new_figure(
        "Without a cache, time grows with the square of the text",
        "GPT-2's size, one user, 5 prompt tokens; summed from measured steps",
        panels=2,
    )
    left.plot(new, naive, color=ORANGE, label="naive")
    left.plot(new, cached, color=BLUE, label="with KV cache")
    left.set(xlabel="new tokens", ylabel="seconds in all", ylim=(0, None))
    left.legend()
    right.plot(new, naive / cached, color=GREEN)
    right.axhline(3.1, color=GREY, linestyle="--", linewidth=1.2)
    right.annotate("the article's 3.1x", (new[-1], 3.1), ha="right", va="bottom", color=GREY)
    right.set(xlabel="new tokens", ylabel="times faster", ylim=(0, None))
    return fig


def draw_latency(times: Sequence[StepTimes]):
    tokens = [t.tokens for t in times]
    late = times[-1].decode / times[0].decode
    fig, (left, right) = new_figure(
        f"The first token waits for the prompt; the next ones slow down {late:.2f}x by token {tokens[-1]:,}",
        "GPT-2's size, one user; fastest of several repeats",
        panels=2,
    )
    left.plot(tokens, [1000 * t.prefill for t in times], marker="o", color=ORANGE)
    left.set(xlabel="prompt tokens", ylabel="TTFT, ms", xscale="log", yscale="log")
    plain_numbers(left)
    right.plot(tokens, [1000 * t.decode for t in times], marker="o", color=BLUE)
    right.set(xlabel="tokens of text so far", ylabel="ITL, ms", ylim=(0, None))
    return fig


def draw_memory(used: np.ndarray, reserved: np.ndarray):
    fig, (ax,) = new_figure(
        f"Each token of GPT-2 keeps {used[-1] / (len(used) - 1) / 1024:.0f} KiB; doubling reserves more",
        "One sequence, FP16, counted in the cache as tokens come in",
    )
    tokens = np.arange(len(used))
    ax.axhline(
        used[-1] / 1e6, color=GREY, linestyle="--", linewidth=1.2, label="whole context reserved at once"
    )
    ax.step(tokens, reserved / 1e6, color=ORANGE, where="post", label="reserved by doubling")
    ax.fill_between(tokens, used / 1e6, color=BLUE, alpha=0.25)
    ax.plot(tokens, used / 1e6, color=BLUE, label="in use")
    ax.set(xlabel="tokens of text", ylabel="MB", ylim=(0, None), xlim=(0, len(used)))
    ax.legend(loc="lower right")
    return fig
