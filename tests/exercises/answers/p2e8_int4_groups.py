"""Answers to p2e8_int4_groups: right ones, and mistakes by the diagnosis they must get."""

import torch


def pack_by_sums(codes):
    wide = codes.unflatten(-1, (2, 16)).int()
    return (wide[..., 0, :] + 16 * wide[..., 1, :]).to(torch.uint8)


def unpack_by_places(packed, scales):
    out = torch.empty(*packed.shape[:-1], 32)
    out[..., :16] = packed.remainder(16)
    out[..., 16:] = packed // 16
    return out.sub(8).mul(scales.unsqueeze(-1))


HALVES = "codes[..., :16], codes[..., 16:]"
BYTE = "low | high << 4"
CODES = "torch.cat((packed & 15, packed >> 4), dim=-1)"
RIGHT = [(pack_by_sums, unpack_by_places)]
WRONG = {
    "pack-neighbours": {HALVES: "codes[..., ::2], codes[..., 1::2]"},
    "pack-halves-exchanged": {BYTE: "high | low << 4"},
    "pack-not-shifted": {BYTE: "low | high"},
    "pack-shifted-by-another-number": {BYTE: "low | high << 8"},
    "pack-not-packed": {BYTE: "codes"},
    "unpack-neighbours": {CODES: "torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)"},
    "unpack-halves-exchanged": {"packed & 15, packed >> 4": "packed >> 4, packed & 15"},
    "unpack-not-masked": {"packed & 15": "packed"},
    "unpack-zero-forgotten": {" - 8": ""},
    "unpack-zero-in-the-middle": {" - 8": " - 7.5"},
    "unpack-below-zero": {CODES: f"{CODES} - 8", "(codes.float() - 8)": "codes.float()"},
    "unpack-scale-forgotten": {" * scales[..., None]": ""},
    "unpack-scale-divides": {"* scales": "/ scales"},
}
