"""Grader of the rotation. The reference multiplies complex numbers, one by one."""

import cmath
from collections.abc import Callable

import torch
from torch import Tensor

from exercises.grading import Diagnoses, Exercise, guard, same
from exercises.judging.judge import judge


def right_rotation(x: Tensor, positions: Tensor, theta: float = 10_000.0) -> Tensor:
    """Each pair as a complex number, multiplied by e^(i angle), one by one."""
    half = x.shape[-1] // 2
    out = x.double().clone()
    for token, position in enumerate(positions.tolist()):
        for head in range(x.shape[1]):
            for i in range(half):
                point = complex(out[token, head, i], out[token, head, i + half])
                point *= cmath.exp(1j * position * theta ** (-2 * i / x.shape[-1]))
                out[token, head, i], out[token, head, i + half] = point.real, point.imag
    return out.to(x.dtype)


def rotation_with(
    speed: Callable[[Tensor, int], Tensor] | None = None,
    place: Callable[[Tensor], Tensor] = lambda positions: positions,
    sign: float = 1.0,
    pairs: str = "halves",
    angles: Callable[[Tensor], Tensor] = lambda angles: angles,
    theta_given: bool = True,
) -> Callable:
    """The rotation with a detail changed."""

    def rotate(x: Tensor, positions: Tensor, theta: float = 10_000.0) -> Tensor:
        d = x.shape[-1]
        theta = theta if theta_given else 10_000.0
        i = torch.arange(d // 2).double()
        speeds = theta ** (-2 * i / d) if speed is None else speed(i, d)
        turn = sign * angles(place(positions).double()[:, None] * speeds)
        cos, sin = turn.cos()[:, None], turn.sin()[:, None]
        x64 = x.double()
        if pairs == "neighbours":
            a, b = x64[..., 0::2], x64[..., 1::2]
            out = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        else:
            a, b = x64.chunk(2, dim=-1)
            first, second = a * cos - b * sin, b * cos + a * sin
            if pairs == "mirrored":
                second = a * cos + b * sin
            elif pairs == "no minus":
                first = a * cos + b * sin
            elif pairs == "exchanged":
                first, second = a * sin - b * cos, b * sin + a * cos
            elif pairs == "one after the other":
                second = b * cos + first * sin
            out = torch.cat((first, second), dim=-1)
        return out.to(x.dtype)

    return rotate


ROTATIONS = {
    "rotary-positions-start-anew": rotation_with(place=lambda p: torch.arange(len(p))),
    "rotary-one-position-for-all": rotation_with(place=lambda p: torch.arange(len(p)) + p[0]),
    "rotary-counts-from-one": rotation_with(place=lambda p: p + 1),
    "rotary-pairs-of-neighbours": rotation_with(pairs="neighbours"),
    "rotary-turns-backwards": rotation_with(sign=-1.0),
    "rotary-is-no-rotation": rotation_with(pairs="mirrored"),
    "rotary-no-minus": rotation_with(pairs="no minus"),
    "rotary-first-half-overwritten": rotation_with(pairs="one after the other"),
    "rotary-speed-without-two": rotation_with(speed=lambda i, d: 10_000.0 ** (-i / d)),
    "rotary-too-slow": rotation_with(speed=lambda i, d: 10_000.0 ** (-4 * i / d)),
    "rotary-one-speed": rotation_with(speed=lambda i, d: torch.ones_like(i)),
    "rotary-grows": rotation_with(speed=lambda i, d: 10_000.0 ** (2 * i / d)),
    "rotary-speed-from-one": rotation_with(speed=lambda i, d: 10_000.0 ** (-2 * (i + 1) / d)),
    "rotary-sine-for-cosine": rotation_with(pairs="exchanged"),
    "rotary-unchanged": lambda x, positions, theta=10_000.0: x,
    "rotary-degrees": rotation_with(angles=torch.deg2rad),
    "rotary-theta-ignored": rotation_with(theta_given=False),
}
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
