"""Graders of two weights in a byte, and of the outlier that ruins absmax."""

from collections.abc import Callable

import torch
from torch import Tensor

from exercises.judging.judge import Exercise, When

# ---------------------------------------------------------------------- 2.8 two weights in a byte

HALVES, BYTE = "codes[..., :16], codes[..., 16:]", "low | high << 4"
CODES = "torch.cat((packed & 15, packed >> 4), dim=-1)"
INT4 = Exercise(
    "p2e8_int4_groups",
    pack={
        "pack-neighbours": {HALVES: "codes[..., ::2], codes[..., 1::2]"},
        "pack-halves-exchanged": {BYTE: "high | low << 4"},
        "pack-not-shifted": ({BYTE: "low | high"}, {BYTE: "low + high"}),
        "pack-shifted-by-another-number": tuple({BYTE: f"low | high << {n}"} for n in (1, 2, 3, 5, 8)),
        "pack-not-packed": {BYTE: "codes"},
    },
    unpack={
        "unpack-neighbours": {CODES: "torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)"},
        "unpack-halves-exchanged": {"packed & 15, packed >> 4": "packed >> 4, packed & 15"},
        "unpack-not-masked": {"packed & 15": "packed"},
        "unpack-zero-forgotten": {" - 8": ""},
        "unpack-zero-in-the-middle": ({" - 8": " - 7"}, {" - 8": " - 7.5"}),
        "unpack-below-zero": {CODES: f"{CODES} - 8", "(codes.float() - 8)": "codes.float()"},
        "unpack-scale-without-a-dimension": {"scales[..., None]": "scales"},
        "unpack-scale-forgotten": {" * scales[..., None]": ""},
        "unpack-scale-divides": {"* scales": "/ scales"},
    },
)


def _bytes(packed: Tensor) -> Tensor:
    if isinstance(packed, Tensor) and packed.dtype != torch.uint8:
        raise INT4.says().no("pack-not-bytes", "pack", packed, "a tensor of torch.uint8")
    return packed


@INT4.grader
def grade_int4_groups(pack: Callable, unpack: Callable) -> None:
    random = torch.Generator().manual_seed(3)

    def codes_of(*shape: int) -> Tensor:
        return torch.randint(0, 16, (*shape, 32), generator=random, dtype=torch.uint8)

    counted = torch.arange(32).remainder(16).to(torch.uint8)[None]
    codes = [counted, codes_of(1), codes_of(5), codes_of(2, 3), torch.full((1, 32), 15, dtype=torch.uint8)]
    INT4.judge("pack", pack, [(each,) for each in codes], clean=_bytes)
    right = INT4.answers["pack"]
    cases = [(right(counted), torch.tensor([1.0])), (right(codes_of(4)), torch.rand(4, generator=random))]
    cases.append((right(codes_of(2, 3)), torch.rand(2, 3, generator=random) - 0.5))  # Q4_0 has negative ones
    INT4.judge("unpack", unpack, cases)


# ---------------------------------------------------------------------- 2.9 the outlier

FOUND, PUT_BACK = "int(largest.bincount().argmax())", "back[:, column] = weight[:, column]"
SCALES = "scales = rest.abs().amax(dim=1, keepdim=True) / 127"
OUTLIER = Exercise(
    "p2e9_outlier",
    find_outlier={
        "find-sign-forgotten": (
            {"weight.abs()": "weight"},
            {FOUND: "int(weight.amax(0).argmax())"},
            {FOUND: "int(weight.argmax()) % weight.shape[1]"},
        ),
        "find-largest-weight": (
            {FOUND: "int(weight.abs().amax(0).argmax())"},
            {FOUND: "int(weight.abs().sum(0).argmax())"},
            {FOUND: "int(weight.square().sum(0).argmax())"},
        ),
        "find-average": (
            {FOUND: "int(weight.abs().median(0).values.argmax())"},
            {FOUND: "int((weight / weight.abs().amax(1, keepdim=True)).abs().sum(0).argmax())"},
        ),
        "find-signs-cancel": {FOUND: "int(weight.mean(dim=0).abs().argmax())"},
        "find-row": ({"argmax(dim=1)": "argmax(dim=0)"}, {FOUND: "int(weight.abs().amax(1).argmax())"}),
        "find-flat-place": ({FOUND: "weight.abs().argmax()"}, {FOUND: "weight.argmax()"}),
        "find-count": {"bincount().argmax()": "bincount().max()"},
    },
    mend={
        "mend-outlier-decides": (
            {"rest[:, column] = 0\n    ": "", SCALES: f"{SCALES}\n    rest[:, column] = 0"},
            {"rest[:, column] = 0": "pass"},
        ),
        "mend-outlier-lost": {PUT_BACK: "pass"},
        "mend-outlier-cut": {
            "(rest / scales": "(weight / scales",
            ".round()": ".round().clamp(-127, 127)",
            PUT_BACK: "pass",
        },
        "mend-one-scale": {"amax(dim=1, keepdim=True)": "max()"},
        "mend-scale-a-column": {"amax(dim=1": "amax(dim=0"},
        "mend-sign-forgotten": {"rest.abs().amax": "rest.amax"},
        "mend-not-rounded": {".round()": ""},
        "mend-rounded-down": ({".round()": ".trunc()"}, {".round()": ".floor()"}),
        "mend-codes": {"codes * scales": "codes"},
        "mend-another-range": tuple({"/ 127": f"/ {most}"} for most in (128, 255, 256, 127.5, 7, 15, 1)),
        "mend-nan": ({".clamp(min=1e-30)": ""}, When(lambda got, *_: bool(got.isnan().any()))),
        "mend-wrong-column": {"[:, column]": "[column]"},
    },
)


@OUTLIER.grader
def grade_outlier(find_outlier: Callable, mend: Callable) -> None:
    random = torch.Generator().manual_seed(5)

    def matrix(rows: int, columns: int, outlier: int, times: float = 40.0) -> Tensor:
        weight = torch.randn(rows, columns, generator=random)
        weight[:, outlier] *= times
        return weight

    small = torch.tensor([[0.08, -0.28, 25.4], [0.5, 0.1, -30.0], [0.3, 0.2, 20.0]])
    below = matrix(9, 6, 4)
    below[:, 4] = -below[:, 4].abs() - 5
    both_signs = matrix(8, 6, 1)
    both_signs[:, 1] = torch.tensor([50.0, -50.0]).repeat(4)
    one_row = matrix(12, 20, 15)
    one_row[3, 8] = -9000.0  # far larger than all others, but it ruins one row
    wide, tall = matrix(7, 31, 28), matrix(40, 5, 2)
    # Column 0 decides three rows, by little; in all rows column 1 is large.
    close = torch.tensor([[10.0, 9, 0], [1, 0.9, 0], [0.1, 0.09, 0], [0, 1, 0.5], [0, 1, 0.5]])
    OUTLIER.judge(
        "find_outlier",
        find_outlier,
        [(weight,) for weight in (small, below, both_signs, one_row, wide, tall, close)],
        clean=lambda found: found.item() if isinstance(found, Tensor) and found.ndim == 0 else found,
    )
    zeros = matrix(6, 8, 3)
    zeros[2] = 0.0
    zeros[2, 3] = 12.0  # without the outlier there is nothing in this row
    cases = [(small, 2), (below, 4), (wide, 28), (tall, 2), (zeros, 3)]
    # Of the outlier: the others are a hundred times as small.
    OUTLIER.judge("mend", mend, cases, tolerance=1e-6)
