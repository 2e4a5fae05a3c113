"""How long does a step take, if each kernel of the card was timed by itself?

A step starts the same kernels in every layer. Whoever owns the card can time each of them once, over the sizes
that matter, and write tables. Then a step is a sum: look up its attention and its matrix products, times the
number of layers, plus what happens once a step (the embedding, the output head, the choice of the tokens).

The tables in `recorded/` are vLLM 0.19's kernels in 16 bit, published by LLMServingSim; see the README there.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from labkit.errors import LabError
from phase4_scheduler.simulator.step_size import StepSize

FOLDER = Path(__file__).parent / "recorded"
AXES = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
EACH_LAYER = (
    "layernorm",
    "qkv_proj",
    "rotary_emb",
    "o_proj",
    "layernorm",
    "gate_up_proj",
    "act_fn",
    "down_proj",
)
ONCE = ("embedding", "final_layernorm")


@dataclass(frozen=True)
class KernelTable:
    """Seconds = step + layers x (attention + the layer's other kernels) + what happens once a step.

    Attributes:
        name: the model and the card.
        num_layers: of the model; the tables hold one layer.
        num_blocks: KV blocks of 16 tokens that vLLM had on this card.
        max_context: most tokens of a request.
        axes: sizes at which attention was timed: tokens of a prompt's piece, tokens before them, decoding
            requests, tokens of each of those.
        attention: microseconds, indexed by places on the four axes.
        layer, once: microseconds of the other kernels, indexed by the tokens of the step.
        choice: microseconds of the output head and the sampler, indexed by requests.
        step: seconds that a step takes besides its kernels, such as for the work of the CPU.

    What it leaves out: everything between two kernels (unless `step` is set), CUDA graphs, and that decoding
    requests are of different lengths: the table knows their mean only.
    """

    kind: ClassVar[str] = "measured kernels'"
    name: str
    num_layers: int
    num_blocks: int
    max_context: int
    axes: Sequence[Sequence[int]]
    attention: list
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
        """Read attention.csv.gz, dense.csv and per_sequence.csv. Raises LabError where they make no sense.

        Args:
            each_layer: the kernels that a layer starts besides attention.
        """
        folder = Path(folder)
        axes, attention = _grid(folder / "attention.csv.gz")
        dense = read_table(folder / "dense.csv", "tokens", *each_layer, *ONCE)
        choice = read_table(folder / "per_sequence.csv", "sequences", "lm_head", "sampler")
        return cls(
            name, num_layers, num_blocks, max_context, axes, attention,
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
        """Microseconds of one layer. Decoding requests are looked up together with the longest piece of a prompt,
        as they run in one kernel; other pieces by themselves."""
        decodes = size.num_requests - len(size.chunks)
        context = size.context - sum(before + n for before, n in size.chunks)
        mean = context / decodes if decodes else 0
        pieces = sorted(((n, before) for before, n in size.chunks), reverse=True) or [(0, 0)]
        alone = sum(self._look_up(n, before, 0, 0) for n, before in pieces[1:])
        return self._look_up(*pieces[0], decodes, mean) + alone

    def _look_up(self, *point: float) -> float:
        """On straight lines between the sizes that were timed, along all four axes at once."""
        total = 0.0
        for corner in itertools.product(*map(_neighbours, self.axes, point)):
            (a, u), (b, v), (c, w), (d, x) = corner
            total += u * v * w * x * self.attention[a][b][c][d]
        return total

    def describe(self) -> str:
        return f"kernels timed one by one: {self.name}, 16 bit, vLLM 0.19"


def read_table(path: str | Path, *columns: str) -> np.ndarray:
    """A CSV file with a header, as a structured array. Every number must be 0 or more.

    Raises:
        LabError: no such file, a column that is missing, a number that makes no sense; names the file and the place.
    """
    try:
        table = np.atleast_1d(np.genfromtxt(path, delimiter=",", names=True))
    except OSError as error:
        raise LabError(f"cannot read the table {path} ({error.strerror or error}): check the path") from None
    except ValueError:
        raise LabError(f"{path} is no table: its lines do not have equally many columns") from None
    missing = [name for name in columns if name not in (table.dtype.names or ())]
    if missing or not len(table):
        raise LabError(
            f"{path} needs columns {', '.join(dict.fromkeys(columns))} and a line: {missing or 'lines'} missing"
        )
    for name in dict.fromkeys(columns):
        wrong = np.flatnonzero(~(table[name] >= 0) | np.isinf(table[name]))
        if len(wrong):
            line, value = wrong[0] + 2, table[name][wrong[0]]
            raise LabError(f"{path}, line {line}: {name} is {value:g}, a number of 0 or more is needed")
    return table


def _grid(path: Path) -> tuple[list[list[int]], list]:
    """The axes, and attention's microseconds at each point of them."""
    table = read_table(path, *AXES, "time_us")
    axes = [np.unique(table[name]).astype(int) for name in AXES]
    grid = np.full([len(axis) for axis in axes], np.nan)
    grid[tuple(np.searchsorted(axis, table[name]) for axis, name in zip(axes, AXES))] = table["time_us"]
    # Without a prompt, or without decodes, there is no context of theirs, and the first place stands for all.
    grid[0] = grid[0, :1]
    grid[:, :, 0] = grid[:, :, 0, :1]
    grid[0, :, 0] = 0
    grid[:, :, 1:, 0] = grid[:, :, 1:, 1]
    # A step of the most tokens has no room for decodes, so nobody timed it with any: add the two.
    gaps = np.isnan(grid)
    apart = grid[:, :, :1, :1] + grid[:1, :1] - grid[0, 0, 1, 1]
    grid[gaps] = np.broadcast_to(apart, grid.shape)[gaps]
    if np.isnan(grid).any():
        place = np.argwhere(np.isnan(grid))[0]
        point = ", ".join(f"{name} {axis[i]}" for name, axis, i in zip(AXES, axes, place))
        raise LabError(f"{path} has a gap: nothing for {point}")
    return [axis.tolist() for axis in axes], grid.tolist()


def _neighbours(axis: Sequence[int], value: float) -> list[tuple[int, float]]:
    """The measured sizes on both sides, each with its share. Beyond the last one the line is drawn on."""
    right = min(max(bisect_left(axis, value), 1), len(axis) - 1)
    share = (value - axis[right - 1]) / (axis[right] - axis[right - 1])
    return [(i, part) for i, part in ((right - 1, 1 - share), (right, share)) if part]


def _every_size(sizes: np.ndarray, microseconds: np.ndarray) -> list[float]:
    """From the sizes that were timed to all sizes from 0 to the largest, on straight lines."""
    return np.interp(np.arange(sizes.max() + 1), sizes, microseconds).tolist()


def at_size(line: Sequence[float], size: int) -> float:
    """Beyond the largest size that was timed, time grows in proportion."""
    last = len(line) - 1
    return line[size] if size <= last else line[last] * size / last
