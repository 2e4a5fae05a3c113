"""Grader of the cache: what was appended must come back, layer by layer, and nothing else."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from exercises.judging.comparing import same
from exercises.judging.judge import Exercise, When

FULL = "room for 4 tokens: 3 come, then 2, which do not fit, then 1"
RUNS = [  # name, layers, room, how many new tokens come in each step; every layer gets them, one after the other
    ("a prompt of 3 tokens, one layer", 1, 8, [3]),
    ("a prompt of 3 tokens, then one more, one layer", 1, 8, [3, 1]),
    ("a prompt of 3 tokens, two layers", 2, 8, [3]),
    ("a prompt of 3 tokens, then two more, three layers", 3, 8, [3, 1, 1]),
    ("chunks of 4, 4 and 2 tokens, filling the room to the last place", 2, 10, [4, 4, 2]),
    (FULL, 1, 4, [3, 2, 1]),
]
Appended = list[Any]  # [keys, values], or "a ValueError", for each layer of each step


def run(cache_class: Callable, name: str, num_layers: int, room: int, steps: list[int]) -> Appended:
    """What each append gives. The caller goes on using its tensors: they are 0 afterwards."""
    plain = torch.empty

    def nan(*size: Any, **how: Any) -> Tensor:
        """Memory that was never written holds what was there before: by chance the right numbers. Make it NaN."""
        out = plain(*size, **how)
        return out.fill_(torch.nan) if out.is_floating_point() else out

    with patch.object(torch, "empty", nan):
        cache, stored, out = cache_class(num_layers, room, 2, 4), [0] * num_layers, []
        for n in steps:
            for layer in range(num_layers):
                out.append(_append(cache, layer, stored[layer], n))
                stored[layer] += n * (out[-1] != "a ValueError")
    return out


def _append(cache: Any, layer: int, stored: int, n: int) -> Any:
    """The next tokens of a layer. Their numbers tell where they belong: the key of token 3 in layer 0 is 103, 103.01, ..."""
    token = 100.0 * (layer + 1) + stored + torch.arange(n)
    k = token[:, None, None] + torch.tensor([[0.0, 0.01, 0.02, 0.03], [0.1, 0.11, 0.12, 0.13]])
    v = -k
    try:
        out = cache.append(layer, k, v)
    except ValueError:
        return "a ValueError"
    if isinstance(out, (tuple, list)) or (isinstance(out, Tensor) and out.ndim == 4 and len(out) == 2):
        out = [part.clone() for part in out]  # keys and values in one tensor are as good as two
    k.zero_()
    v.zero_()
    return out


def _first_append(got: Appended, want: Appended) -> tuple[Any, Any]:
    """The first append that differs, by the first number of each token, which is enough to see who stands where."""
    which = next((i for i, both in enumerate(zip(got, want)) if not same(*both)), -1)  # -1: an error came

    def short(pair: Any) -> Any:
        if not isinstance(pair, list) or len(pair) != 2:
            return pair
        rows = (", ".join(f"{number:g}" for number in part[:, 0, 0].tolist()) for part in pair)
        return (
            f"append {which % len(want) + 1}, the first number of each token:\n"
            + "keys    {}\nvalues  {}".format(*rows)
        )

    return short(got[which]), short(want[which])


def _tensors(got: Appended) -> list[Tensor]:
    return [part for pair in got if isinstance(pair, list) for part in pair]


START, END = "start = self.lengths[layer]", "self.lengths[layer] = end"
STORE_KEYS, STORE_VALUES = "self.keys[layer, start:end] = k", "self.values[layer, start:end] = v"
PAIR, ROOM = "self.keys[layer, :end], self.values[layer, :end]", "self.keys.shape[1]"
EXERCISE = Exercise(
    "p2e5_cache",
    Cache={
        "cache-one-counter-for-all-layers": (
            {"self.lengths = [0] * num_layers": "self.length = 0", "self.lengths[layer]": "self.length"},
            {START: "start = self.lengths[0]", END: "self.lengths[0] += len(k) * (layer == 0)"},
        ),
        "cache-layers-mixed": (
            {"[layer, start:end]": "[0, start:end]", "[layer, :end]": "[0, :end]"},
            {"[layer, start:end]": "[:, start:end]"},
        ),
        "cache-only-the-new": {"[layer, :end]": "[layer, start:end]"},
        "cache-new-missing": {"[layer, :end]": "[layer, : start or end]"},
        "cache-length-not-updated": ({END: "pass"}, {END: "self.lengths[layer] += 1"}),
        "cache-overwrites": {"[layer, start:end]": "[layer, : len(k)]"},
        "cache-new-in-the-wrong-place": {
            STORE_KEYS: "at = slice(-len(k), None) if start else slice(end)\n        self.keys[layer, at] = k",
            STORE_VALUES: "self.values[layer, at] = v",
        },
        "cache-new-in-front": {
            STORE_KEYS: "self.keys[layer, :end] = torch.cat((k, self.keys[layer, :start]))",
            STORE_VALUES: "self.values[layer, :end] = torch.cat((v, self.values[layer, :start]))",
        },
        "cache-returns-its-room": {"[layer, :end]": "[layer]"},
        "cache-last-missing": {"[layer, :end]": "[layer, : end - 1]"},
        "cache-exchanged": {PAIR: "self.values[layer, :end], self.keys[layer, :end]"},
        "cache-values-wrong": {"= v\n": "= k\n"},
        "cache-keys-wrong": {"= k\n": "= v\n"},
        "cache-half-stored": {START: f"{START}\n        self.lengths[layer] += len(k)"},
        "cache-full-unnoticed": ({f"end > {ROOM}": "False"}, When(lambda got, want, name, *_: name == FULL)),
        "cache-full-too-early": (
            {"end > self": "end >= self"},
            {f"end > {ROOM}": "end > len(self.keys)"},
            When(lambda got, want, *_: "a ValueError" in got and "a ValueError" not in want),
        ),
        "cache-borrows-memory": When(lambda got, *_: any(bool((part == 0).any()) for part in _tensors(got))),
        "cache-wrong-type": When(lambda got, *_: any(isinstance(pair, Tensor) for pair in got)),
    },
)


@EXERCISE.grader
def grade_cache(cache_class: Callable) -> None:
    EXERCISE.judge("Cache", cache_class, RUNS, play=run, present=_first_append, show=lambda name, *_: name)
