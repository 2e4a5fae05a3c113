"""Grader of the rotation."""

from collections.abc import Callable

import torch
from torch import Tensor

from exercises.judging.judge import When
from exercises.judging.solutions import Solution

PLACES, TURNED = "positions.float()", "a * cos - b * sin, b * cos + a * sin"
SPEEDS = "theta ** (-torch.arange(half, dtype=torch.float32) / half)"
RESULT = f"torch.cat(({TURNED}), dim=-1).to(x.dtype)"
EXERCISE = Solution(
    "p2e4_rotary",
    rotate={
        "rotary-positions-start-anew": {PLACES: "torch.arange(len(x)).float()"},
        "rotary-one-position-for-all": {PLACES: "(positions[0] + torch.arange(len(x))).float()"},
        "rotary-counts-from-one": {PLACES: "(positions + 1).float()"},
        "rotary-pairs-of-neighbours": {
            "x[..., :half].float(), x[..., half:].float()": "x[..., ::2].float(), x[..., 1::2].float()",
            RESULT: f"torch.stack(({TURNED}), dim=-1).flatten(-2).to(x.dtype)",
        },
        "rotary-turns-backwards": {TURNED: "a * cos + b * sin, b * cos - a * sin"},
        "rotary-is-no-rotation": {TURNED: "a * cos - b * sin, a * cos + b * sin"},
        "rotary-no-minus": {TURNED: "a * cos + b * sin, b * cos + a * sin"},
        "rotary-first-half-overwritten": {TURNED: "(a := a * cos - b * sin), b * cos + a * sin"},
        "rotary-speed-without-two": {"/ half)": "/ x.shape[-1])"},
        "rotary-too-slow": {"-torch.arange": "-2 * torch.arange"},
        "rotary-one-speed": {SPEEDS: "torch.ones(half)"},
        "rotary-grows": {"-torch.arange": "torch.arange"},
        "rotary-speed-from-one": {"arange(half,": "arange(1, half + 1,"},
        "rotary-sine-for-cosine": {TURNED: "a * sin - b * cos, b * sin + a * cos"},
        "rotary-unchanged": {RESULT: "x"},
        "rotary-degrees": {PLACES: "torch.deg2rad(positions.float())"},
        "rotary-theta-ignored": {"= theta **": "= 10_000.0 **"},
        "rotary-format-changed": ({".to(x.dtype)": ""}, When(lambda got, want, *_: got[0] != want[0])),
        "rotary-angles-rounded": When(lambda got, want, x, *_: x.dtype == torch.bfloat16),
    },
)


@EXERCISE.grader
def grade_rotary(rotate: Callable) -> None:
    random = torch.Generator().manual_seed(3)
    cases = [
        (torch.tensor([[[1.0, 0.0]]]), torch.tensor([1])),
        (torch.tensor([[[1.0, 1.0, 0, 0]]]), torch.tensor([2])),
    ]
    rows = ((2, 8, [0, 1, 2]), (2, 8, [3, 4, 5]), (1, 16, [41]), (3, 4, [7, 0, 30, 12]), (2, 64, [900, 901]))
    for heads, d, positions in rows:
        cases.append((torch.randn(len(positions), heads, d, generator=random), torch.tensor(positions)))
    cases += [(*cases[2], 500_000.0), (*cases[5], 100.0)]
    EXERCISE.judge("rotate", rotate, cases, tolerance=2e-4)
    half = torch.randn(2, 2, 8, generator=random.manual_seed(4)).bfloat16(), torch.tensor([1001, 1002])

    def format_first(out: Tensor) -> list:
        return [str(out.dtype), out.float()] if isinstance(out, Tensor) else out

    EXERCISE.judge("rotate", rotate, [half], clean=format_first, tolerance=0.03)
