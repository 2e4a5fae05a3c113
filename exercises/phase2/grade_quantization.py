"""Grader of two weights in a byte."""

from collections.abc import Callable

import torch
from torch import Tensor

from exercises.grading import Diagnoses
from exercises.judging.judge import judge

INT4_SAYS = Diagnoses.of("p2e8_int4_groups")


def right_pack(codes: Tensor) -> Tensor:
    """Byte by byte."""
    groups = codes.flatten(0, -2).tolist()
    packed = [[group[j] + 16 * group[j + 16] for j in range(16)] for group in groups]
    return torch.tensor(packed, dtype=torch.uint8).view(*codes.shape[:-1], 16)


def right_unpack(packed: Tensor, scales: Tensor) -> Tensor:
    return unpack_with()(packed, scales)


def unpack_with(
    halves: Callable[[Tensor], tuple[Tensor, Tensor]] = lambda p: (p % 16, p // 16),
    join: Callable[[Tensor, Tensor], Tensor] = lambda low, high: torch.cat((low, high), -1),
    zero: int = 8,
) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda packed, scales: (join(*halves(packed)).double() - zero).mul(scales[..., None]).float()


def _neighbours(low: Tensor, high: Tensor) -> Tensor:
    return torch.stack((low, high), -1).flatten(-2)


PACK = {
    "pack-neighbours": lambda codes: codes[..., 0::2] | codes[..., 1::2] << 4,
    "pack-halves-exchanged": lambda codes: codes[..., 16:] | codes[..., :16] << 4,
    "pack-not-shifted": (
        lambda codes: codes[..., :16] | codes[..., 16:],
        lambda codes: codes[..., :16] + codes[..., 16:],
    ),
    "pack-shifted-by-another-number": tuple(
        lambda codes, n=n: codes[..., :16] | codes[..., 16:] << n for n in (1, 2, 3, 5, 8)
    ),
    "pack-not-packed": lambda codes: codes,
}
UNPACK = {
    "unpack-neighbours": unpack_with(join=_neighbours),
    "unpack-halves-exchanged": unpack_with(join=lambda low, high: torch.cat((high, low), -1)),
    "unpack-not-masked": unpack_with(halves=lambda p: (p, p // 16)),
    "unpack-zero-forgotten": unpack_with(zero=0),
    "unpack-zero-in-the-middle": (unpack_with(zero=7), unpack_with(zero=7.5)),
    "unpack-below-zero": lambda packed, scales: (
        (torch.cat((packed & 15, packed >> 4), -1) - 8).float() * scales[..., None]
    ),
    "unpack-scale-forgotten": lambda packed, scales: right_unpack(packed, torch.ones_like(scales)),
    "unpack-scale-divides": lambda packed, scales: right_unpack(packed, 1 / scales),
}


def grade_int4_groups(pack: Callable, unpack: Callable) -> None:
    random = torch.Generator().manual_seed(3)

    def codes_of(*shape: int) -> Tensor:
        return torch.randint(0, 16, (*shape, 32), generator=random, dtype=torch.uint8)

    counted = torch.arange(32).remainder(16).to(torch.uint8)[None]
    judge(
        pack,
        [
            (counted,),
            (codes_of(1),),
            (codes_of(5),),
            (codes_of(2, 3),),
            (torch.full((1, 32), 15, dtype=torch.uint8),),
        ],
        right_pack,
        PACK,
        INT4_SAYS,
        show=lambda codes: f"pack(codes of shape {list(codes.shape)})",
    )
    cases = [
        (right_pack(counted), torch.tensor([1.0])),
        (right_pack(codes_of(4)), torch.rand(4, generator=random)),
    ]
    cases += [
        (right_pack(codes_of(2, 3)), torch.rand(2, 3, generator=random) - 0.5)
    ]  # Q4_0 has negative ones, too
    judge(
        unpack,
        cases,
        right_unpack,
        UNPACK,
        INT4_SAYS,
        show=lambda packed, scales: (
            f"unpack(packed of shape {list(packed.shape)}, scales of {list(scales.shape)})"
        ),
    )
