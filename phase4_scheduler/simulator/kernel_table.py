"""How long does a step take, if each kernel of the card was timed by itself?

A step starts the same kernels in every layer. The owner of a card can time each of them once, over the sizes that
matter, and write tables. Then a step is a sum: its attention and its matrix multiplications, times the number of
layers, plus what happens once a step (the embedding, the output head, sampling).

The tables in `recorded/` are vLLM 0.19's kernels in 16 bit, published by LLMServingSim; see the README there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from phase4_scheduler.simulator.cost_model import StepSize

FOLDER = Path(__file__).parent / "recorded"
AXES = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
EACH_LAYER = (
    "layernorm", "qkv_proj", "rotary_emb", "o_proj", "layernorm", "gate_up_proj", "act_fn", "down_proj",
)  # fmt: skip
ONCE = ("embedding", "final_layernorm")


@dataclass(frozen=True)
class KernelTable:
    """Seconds = step + layers x (attention + the layer's other kernels) + what happens once a step.

    Attributes:
        name: the model and the card.
        num_layers: of the model; the tables hold one layer.
        num_blocks: KV blocks of 16 tokens that vLLM had on this card.
        max_context: most tokens of a request.
        attention: microseconds at a point of the four AXES: tokens of a chunk of a prompt, tokens before them, decoding
            requests, tokens of each of those. Straight lines between the sizes that were timed, and beyond the last one.
        layer, once: microseconds of the other kernels, indexed by the tokens of the step.
        choice: microseconds of the output head and the sampler, indexed by requests.
        step: seconds that a step takes besides its kernels, such as for the work of the CPU.

    What it leaves out: everything between two kernels (unless `step` is set), CUDA graphs, and that decoding
    requests are of different lengths: the table knows their mean only.
    """

    name: str
    num_layers: int
    num_blocks: int
    max_context: int
    attention: Callable[[Sequence[tuple[float, ...]]], np.ndarray]
    layer: Sequence[float]
    once: Sequence[float]
    choice: Sequence[float]
    step: float = 0.0

    @classmethod
    def load(
        cls,
        folder: str | Path,
        name: str,
        num_layers: int,
        num_blocks: int,
        max_context: int,
        each_layer: Sequence[str] = EACH_LAYER,
    ) -> KernelTable:
        """Read attention.csv.gz, dense.csv and per_sequence.csv.

        Args:
            each_layer: the kernels that a layer starts besides attention.
        """
        folder = Path(folder)
        dense = read_table(folder / "dense.csv")
        choice = read_table(folder / "per_sequence.csv")
        return cls(
            name, num_layers, num_blocks, max_context, _grid(folder / "attention.csv.gz"),
            _every_size(dense["tokens"], sum(dense[kernel] for kernel in each_layer)),
            _every_size(dense["tokens"], sum(dense[kernel] for kernel in ONCE)),
            _every_size(choice["sequences"], choice["lm_head"] + choice["sampler"]),
        )  # fmt: skip

    def seconds(self, size: StepSize) -> float:
        tokens = size.num_tokens
        layer = self.attention_of(size) + at_size(self.layer, tokens)
        once = at_size(self.once, tokens) + at_size(self.choice, size.num_requests)
        return self.step + 1e-6 * (self.num_layers * layer + once)

    def attention_of(self, size: StepSize) -> float:
        """Microseconds of one layer. Decoding requests are looked up together with the longest chunk of a prompt,
        as they run in one kernel; other chunks by themselves."""
        decodes = size.num_requests - len(size.chunks)
        context = size.context - sum(before + n for before, n in size.chunks)
        mean = context / decodes if decodes else 0
        longest, *others = sorted(((n, before) for before, n in size.chunks), reverse=True) or [(0, 0)]
        return float(self.attention([(*longest, decodes, mean), *((*chunk, 0, 0) for chunk in others)]).sum())

    def describe(self) -> str:
        return f"kernels timed one by one: {self.name}, 16 bit, vLLM 0.19"


def read_table(path: str | Path) -> np.ndarray:
    """A CSV file with a header, as a structured array."""
    return np.atleast_1d(np.genfromtxt(path, delimiter=",", names=True))


def _grid(path: Path) -> Callable[[Sequence[tuple[float, ...]]], np.ndarray]:
    """Attention's microseconds at each point of the axes."""
    from scipy.interpolate import (
        RegularGridInterpolator,
    )  # half a second, also of a server that needs no table

    table = read_table(path)
    axes = [np.unique(table[name]) for name in AXES]
    grid = np.full([len(axis) for axis in axes], np.nan)
    grid[tuple(np.searchsorted(axis, table[name]) for axis, name in zip(axes, AXES))] = table["time_us"]
    # Without a prompt, or without decodes, there is no context of theirs, and the first place stands for all.
    grid[0] = grid[0, :1]
    grid[:, :, 0] = grid[:, :, 0, :1]
    grid[0, :, 0] = 0
    grid[:, :, 1:, 0] = grid[:, :, 1:, 1]
    # A step of the most tokens has no room for decodes, so it was not timed with any: add the two.
    apart = grid[:, :, :1, :1] + grid[:1, :1] - grid[0, 0, 1, 1]
    grid = np.where(np.isnan(grid), apart, grid)
    return RegularGridInterpolator(axes, grid, bounds_error=False, fill_value=None)


def _every_size(sizes: np.ndarray, microseconds: np.ndarray) -> list[float]:
    """From the sizes that were timed to all sizes from 0 to the largest, on straight lines."""
    return np.interp(np.arange(sizes.max() + 1), sizes, microseconds).tolist()


def at_size(line: Sequence[float], size: int) -> float:
    """Beyond the largest size that was timed, time grows in proportion."""
    last = len(line) - 1
    return line[size] if size <= last else line[last] * size / last
