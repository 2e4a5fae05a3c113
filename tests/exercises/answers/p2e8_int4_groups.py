"""Answers to p2e8_int4_groups: right ones, and mistakes by the diagnosis they must get."""

import torch

from tests.exercises.changed import changed


def pack(codes):
    low, high = codes[..., :16], codes[..., 16:]
    return low | high << 4


def unpack(packed, scales):
    codes = torch.cat((packed & 15, packed >> 4), dim=-1)
    return (codes.float() - 8) * scales[..., None]


def pack_by_sums(codes):
    wide = codes.unflatten(-1, (2, 16)).int()
    return (wide[..., 0, :] + 16 * wide[..., 1, :]).to(torch.uint8)


def unpack_by_places(packed, scales):
    out = torch.empty(*packed.shape[:-1], 32)
    out[..., :16] = packed.remainder(16)
    out[..., 16:] = packed // 16
    return out.sub(8).mul(scales.unsqueeze(-1))


def unpack_below_zero(packed, scales):
    codes = torch.cat((packed & 15, packed >> 4), dim=-1) - 8
    return codes.float() * scales[..., None]


def unpack_side_by_side(packed, scales):
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
    return (codes.float() - 8) * scales[..., None]


RIGHT = [(pack, unpack), (pack_by_sums, unpack_by_places)]
WRONG = {
    "pack-neighbours": (
        changed(pack, {"codes[..., :16], codes[..., 16:]": "codes[..., ::2], codes[..., 1::2]"}),
        unpack,
    ),
    "pack-halves-exchanged": (changed(pack, {"low | high << 4": "high | low << 4"}), unpack),
    "pack-not-shifted": (changed(pack, {"high << 4": "high"}), unpack),
    "pack-shifted-by-another-number": (changed(pack, {"<< 4": "<< 8"}), unpack),
    "pack-not-packed": (changed(pack, {"low | high << 4": "codes"}), unpack),
    "unpack-neighbours": (pack, unpack_side_by_side),
    "unpack-halves-exchanged": (
        pack,
        changed(unpack, {"packed & 15, packed >> 4": "packed >> 4, packed & 15"}),
    ),
    "unpack-not-masked": (pack, changed(unpack, {"packed & 15": "packed"})),
    "unpack-zero-forgotten": (pack, changed(unpack, {" - 8": ""})),
    "unpack-zero-in-the-middle": (pack, changed(unpack, {" - 8": " - 7.5"})),
    "unpack-below-zero": (pack, unpack_below_zero),
    "unpack-scale-forgotten": (pack, changed(unpack, {" * scales[..., None]": ""})),
    "unpack-scale-divides": (pack, changed(unpack, {"* scales": "/ scales"})),
}
