"""Answers to p2e4_rotary: right ones, and mistakes by the diagnosis they must get."""

import math

import torch


def in_loops(x, positions, theta=10_000.0):
    out = torch.empty_like(x)
    n, heads, d = x.shape
    for t in range(n):
        for i in range(d // 2):
            angle = int(positions[t]) / theta ** (2 * i / d)
            cos, sin = math.cos(angle), math.sin(angle)
            for h in range(heads):
                a, b = float(x[t, h, i]), float(x[t, h, i + d // 2])
                out[t, h, i] = a * cos - b * sin
                out[t, h, i + d // 2] = b * cos + a * sin
    return out


def rotate_half(x, positions, theta=10_000.0):
    """As the transformers library writes it: x cos + (-b, a) sin."""
    d = x.shape[-1]
    speeds = 1.0 / theta ** (torch.arange(0, d, 2).float() / d)
    angles = torch.outer(positions.float(), speeds)
    angles = torch.cat((angles, angles), dim=-1)[:, None]
    turned = torch.cat((-x[..., d // 2 :], x[..., : d // 2]), dim=-1)
    return (x.float() * angles.cos() + turned.float() * angles.sin()).type_as(x)


def complex_numbers(x, positions, theta=10_000.0):
    half = x.shape[-1] // 2
    angles = positions.double().view(-1, 1, 1) * theta ** (-torch.arange(half).double() / half)
    z = torch.complex(*x.double().chunk(2, dim=-1)) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((z.real, z.imag), dim=-1).to(x.dtype)


def in_place(x, positions, theta=10_000.0):
    half = x.shape[-1] // 2
    angles = positions.float()[:, None, None] * theta ** (-torch.arange(half).float() / half)
    a, b = x[..., :half].clone(), x[..., half:].clone()
    x[..., :half] = a * angles.cos() - b * angles.sin()
    x[..., half:] = b * angles.cos() + a * angles.sin()
    return x


def _rotate(x, positions, theta=10_000.0, speeds=None, turn=None, dtype=torch.float32):
    d = x.shape[-1]
    if speeds is None:
        speeds = theta ** (-2 * torch.arange(d // 2).float() / d)
    angles = (positions.to(dtype)[:, None] * speeds.to(dtype))[:, None]
    a, b = x[..., : d // 2].to(dtype), x[..., d // 2 :].to(dtype)
    if turn is None:
        turn = lambda a, b, cos, sin: (a * cos - b * sin, b * cos + a * sin)  # noqa: E731
    return torch.cat(turn(a, b, angles.cos(), angles.sin()), dim=-1).to(x.dtype)


def neighbours(x, positions, theta=10_000.0):
    d = x.shape[-1]
    angles = (positions.float()[:, None] * theta ** (-2 * torch.arange(d // 2).float() / d))[:, None]
    a, b = x[..., ::2].float(), x[..., 1::2].float()
    out = torch.empty_like(x)
    out[..., ::2] = a * angles.cos() - b * angles.sin()
    out[..., 1::2] = b * angles.cos() + a * angles.sin()
    return out


def overwritten(x, positions, theta=10_000.0):
    half = x.shape[-1] // 2
    angles = positions.float()[:, None, None] * theta ** (-torch.arange(half).float() / half)
    x[..., :half] = x[..., :half] * angles.cos() - x[..., half:] * angles.sin()
    x[..., half:] = x[..., half:] * angles.cos() + x[..., :half] * angles.sin()
    return x


def without_two(x, positions, theta=10_000.0):
    d = x.shape[-1]
    return _rotate(x, positions, theta, theta ** (-torch.arange(d // 2).float() / d))


def too_slow(x, positions, theta=10_000.0):
    half = x.shape[-1] // 2
    return _rotate(x, positions, theta, theta ** (-2 * torch.arange(half).float() / half))


def grows(x, positions, theta=10_000.0):
    d = x.shape[-1]
    return _rotate(x, positions, theta, theta ** (2 * torch.arange(d // 2).float() / d))


def pairs_from_one(x, positions, theta=10_000.0):
    d = x.shape[-1]
    return _rotate(x, positions, theta, theta ** (-2 * torch.arange(1, d // 2 + 1).float() / d))


def result_thrown_away(x, positions, theta=10_000.0):
    _rotate(x, positions, theta)
    return x


RIGHT = [
    in_loops,
    rotate_half,
    complex_numbers,
    lambda x, positions, theta=10000.0: in_place(x.clone(), positions, theta),
]
WRONG = {
    "rotary-positions-start-anew": lambda x, positions, theta=10000.0: _rotate(
        x, torch.arange(len(x)), theta
    ),
    "rotary-one-position-for-all": lambda x, positions, theta=10000.0: _rotate(
        x, positions[0] + torch.arange(len(x)), theta
    ),
    "rotary-counts-from-one": lambda x, positions, theta=10000.0: _rotate(x, positions + 1, theta),
    "rotary-pairs-of-neighbours": neighbours,
    "rotary-turns-backwards": lambda x, positions, theta=10000.0: _rotate(
        x, positions, theta, turn=lambda a, b, cos, sin: (a * cos + b * sin, b * cos - a * sin)
    ),
    "rotary-is-no-rotation": lambda x, positions, theta=10000.0: _rotate(
        x, positions, theta, turn=lambda a, b, cos, sin: (a * cos - b * sin, a * cos + b * sin)
    ),
    "rotary-no-minus": lambda x, positions, theta=10000.0: _rotate(
        x, positions, theta, turn=lambda a, b, cos, sin: (a * cos + b * sin, b * cos + a * sin)
    ),
    "rotary-first-half-overwritten": overwritten,
    "rotary-speed-without-two": without_two,
    "rotary-too-slow": too_slow,
    "rotary-one-speed": lambda x, positions, theta=10000.0: _rotate(
        x, positions, theta, torch.ones(x.shape[-1] // 2)
    ),
    "rotary-grows": grows,
    "rotary-speed-from-one": pairs_from_one,
    "rotary-sine-for-cosine": lambda x, positions, theta=10000.0: _rotate(
        x, positions, theta, turn=lambda a, b, cos, sin: (a * sin - b * cos, b * sin + a * cos)
    ),
    "rotary-unchanged": result_thrown_away,
    "rotary-degrees": lambda x, positions, theta=10000.0: _rotate(x, positions * math.pi / 180, theta),
    "rotary-theta-ignored": lambda x, positions, theta=10000.0: _rotate(x, positions),
    "rotary-angles-rounded": lambda x, positions, theta=10000.0: _rotate(x, positions, theta, dtype=x.dtype),
    "rotary-format-changed": lambda x, positions, theta=10000.0: _rotate(x.float(), positions, theta),
    "changes-its-input": in_place,
}
