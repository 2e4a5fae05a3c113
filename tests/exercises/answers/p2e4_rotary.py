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


PLACES = "positions.float()"
SPEEDS = "theta ** (-torch.arange(half, dtype=torch.float32) / half)"
TURNED = "a * cos - b * sin, b * cos + a * sin"
RESULT = f"torch.cat(({TURNED}), dim=-1).to(x.dtype)"
RIGHT = [in_loops, rotate_half, complex_numbers]
WRONG = {
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
    "rotary-angles-rounded": {
        PLACES: "positions.to(x.dtype)",
        "* speeds": "* speeds.to(x.dtype)",
        "].float()": "]",
    },
    "rotary-format-changed": {".to(x.dtype)": ""},
    "changes-its-input": {f"return {RESULT}": f"x[...] = {RESULT}\n    return x"},
}
