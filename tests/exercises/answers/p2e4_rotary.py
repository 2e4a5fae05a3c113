"""Answers to p2e4_rotary: right ones, and mistakes by the diagnosis they must get."""

import math

import torch

from tests.exercises.changed import changed


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


def halves(x, positions, theta=10_000.0):
    d = x.shape[-1]
    speeds = theta ** (-2 * torch.arange(d // 2).float() / d)
    angles = (positions.float()[:, None] * speeds)[:, None]
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., : d // 2].float(), x[..., d // 2 :].float()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


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


def result_thrown_away(x, positions, theta=10_000.0):
    halves(x, positions, theta)
    return x


RIGHT = [
    in_loops,
    rotate_half,
    complex_numbers,
    lambda x, positions, theta=10000.0: in_place(x.clone(), positions, theta),
]
WRONG = {
    "rotary-positions-start-anew": changed(halves, {"positions.float()": "torch.arange(len(x)).float()"}),
    "rotary-one-position-for-all": changed(
        halves, {"positions.float()": "(positions[0] + torch.arange(len(x))).float()"}
    ),
    "rotary-counts-from-one": changed(halves, {"positions.float()": "(positions + 1).float()"}),
    "rotary-pairs-of-neighbours": neighbours,
    "rotary-turns-backwards": changed(
        halves, {"a * cos - b * sin, b * cos + a * sin": "a * cos + b * sin, b * cos - a * sin"}
    ),
    "rotary-is-no-rotation": changed(halves, {"b * cos + a * sin": "a * cos + b * sin"}),
    "rotary-no-minus": changed(halves, {"a * cos - b * sin": "a * cos + b * sin"}),
    "rotary-first-half-overwritten": overwritten,
    "rotary-speed-without-two": changed(halves, {"-2 * torch": "-torch"}),
    "rotary-too-slow": changed(halves, {"/ d)": "/ (d // 2))"}),
    "rotary-one-speed": changed(
        halves, {"theta ** (-2 * torch.arange(d // 2).float() / d)": "torch.ones(d // 2)"}
    ),
    "rotary-grows": changed(halves, {"-2 *": "2 *"}),
    "rotary-speed-from-one": changed(halves, {"arange(d // 2)": "arange(1, d // 2 + 1)"}),
    "rotary-sine-for-cosine": changed(
        halves, {"a * cos - b * sin, b * cos + a * sin": "a * sin - b * cos, b * sin + a * cos"}
    ),
    "rotary-unchanged": result_thrown_away,
    "rotary-degrees": changed(halves, {"positions.float()": "torch.deg2rad(positions.float())"}),
    "rotary-theta-ignored": changed(halves, {"= theta **": "= 10_000.0 **"}),
    "rotary-angles-rounded": changed(
        halves,
        {
            "positions.float()": "positions.to(x.dtype)",
            "* speeds)": "* speeds.to(x.dtype))",
            "].float()": "]",
        },
    ),
    "rotary-format-changed": changed(halves, {".to(x.dtype)": ""}),
    "changes-its-input": in_place,
}
