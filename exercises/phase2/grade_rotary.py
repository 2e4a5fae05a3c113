"""Grader of the rotation. The reference multiplies complex numbers, one by one."""

import cmath
from collections.abc import Callable

import torch
from torch import Tensor

from exercises.grading import Diagnoses, Exercise, guard, same
from exercises.judging.judge import judge
from exercises.judging.slips import slips


def right_rotation(x: Tensor, positions: Tensor, theta: float = 10_000.0) -> Tensor:
    """Each pair as a complex number, multiplied by e^(i angle), one by one."""
    d = x.shape[-1]
    out = x.double().clone()
    for token, position in enumerate(positions.tolist()):
        for head in range(x.shape[1]):
            for i in range(d // 2):
                first, second = i, i + d // 2
                a, b = out[token, head, first].item(), out[token, head, second].item()
                angle = position * theta ** (-2 * i / d)
                turned = complex(a, b) * cmath.exp(1j * angle)
                out[token, head, first], out[token, head, second] = turned.real, turned.imag
    return out.to(x.dtype)


SPEED, PLACES, BACKWARDS = "theta ** (-2 * i / d)", "positions.tolist()", {"1j *": "-1j *"}
MIRRORED = "(complex(a, b) * cmath.exp(-1j * angle)).real"
MISTAKES = {
    "rotary-positions-start-anew": {PLACES: "range(len(positions))"},
    "rotary-one-position-for-all": {PLACES: "(positions[0] + torch.arange(len(x))).tolist()"},
    "rotary-counts-from-one": {"angle = position *": "angle = (position + 1) *"},
    "rotary-pairs-of-neighbours": {"second = i, i + d // 2": "second = 2 * i, 2 * i + 1"},
    "rotary-turns-backwards": BACKWARDS,
    "rotary-is-no-rotation": {"turned.imag": MIRRORED},
    "rotary-no-minus": {"turned.real": MIRRORED},
    "rotary-first-half-overwritten": {
        "turned.imag": "b * cmath.cos(angle).real + turned.real * cmath.sin(angle).real"
    },
    "rotary-speed-without-two": {SPEED: "theta ** (-i / d)"},
    "rotary-too-slow": {SPEED: "theta ** (-4 * i / d)"},
    "rotary-one-speed": {SPEED: "1"},
    "rotary-grows": {SPEED: "theta ** (2 * i / d)"},
    "rotary-speed-from-one": {SPEED: "theta ** (-2 * (i + 1) / d)"},
    "rotary-sine-for-cosine": {**BACKWARDS, "turned.real, turned.imag": "-turned.imag, turned.real"},
    "rotary-unchanged": lambda x, positions, theta=10_000.0: x,
    "rotary-degrees": {"angle = position": "angle = cmath.pi / 180 * position"},
    "rotary-theta-ignored": {"theta **": "10_000.0 **"},
}
ROTATIONS = slips(right_rotation, MISTAKES)
SAYS = Diagnoses.of("p2e4_rotary")


def grade_rotary(rotate: Callable) -> None:
    random = torch.Generator().manual_seed(3)
    cases = [
        (torch.tensor([[[1.0, 0.0]]]), torch.tensor([1])),
        (torch.tensor([[[1.0, 1.0, 0, 0]]]), torch.tensor([2])),
    ]
    shapes = (
        (2, 8, [0, 1, 2]),
        (2, 8, [3, 4, 5]),
        (1, 16, [41]),
        (3, 4, [7, 0, 30, 12]),
        (2, 64, [900, 901]),
    )
    for heads, d, positions in shapes:
        cases.append((torch.randn(len(positions), heads, d, generator=random), torch.tensor(positions)))

    def show(x: Tensor, positions: Tensor, *theta: float) -> str:
        what = x.tolist() if x.numel() < 9 else list(x.shape)
        return (
            f"rotate(x {what}, positions {positions.tolist()}{''.join(f', theta {t:,.0f}' for t in theta)})"
        )

    judge(rotate, cases, right_rotation, ROTATIONS, SAYS, show=show, tolerance=2e-4)
    other = [(*cases[2], 500_000.0), (*cases[5], 100.0)]
    judge(rotate, other, right_rotation, ROTATIONS, SAYS, show=show, tolerance=2e-4)
    _grade_bfloat16(rotate)


def _grade_bfloat16(rotate: Callable) -> None:
    x = torch.randn(2, 2, 8, generator=torch.Generator().manual_seed(4)).bfloat16()
    positions = torch.tensor([1001, 1002])
    tried = "rotate(x in bfloat16, positions [1001, 1002])"
    got, want = guard(rotate, x.clone(), positions, tried=tried), right_rotation(x, positions)
    if isinstance(got, Tensor) and got.dtype != torch.bfloat16:
        raise SAYS.no("rotary-format-changed", tried, got.dtype, "torch.bfloat16")
    if not same(got.float(), want.float(), 0.03):
        raise SAYS.no("rotary-angles-rounded", tried, got, want)


EXERCISES = [
    Exercise("p2e4_rotary", ("rotate",), grade_rotary),
]
