"""Graders of two weights in a byte, and of the outlier that ruins absmax."""

from collections.abc import Callable

import torch
from torch import Tensor

from exercises.grading import Diagnoses, Exercise
from exercises.judging.judge import When, judge
from exercises.judging.slips import slips

# ---------------------------------------------------------------------- 2.8 two weights in a byte

INT4_SAYS = Diagnoses.of("p2e8_int4_groups")


def right_pack(codes: Tensor) -> Tensor:
    """Byte by byte."""
    groups = codes.flatten(0, -2).tolist()
    packed = [[group[j] + 16 * group[j + 16] for j in range(16)] for group in groups]
    return torch.tensor(packed, dtype=torch.uint8).view(*codes.shape[:-1], 16)


def right_unpack(packed: Tensor, scales: Tensor) -> Tensor:
    low, high = packed % 16, packed // 16
    return (torch.cat((low, high), -1).double() - 8).mul(scales[..., None]).float()


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
CODES = "torch.cat((low, high), -1).double() - 8"
UNPACK = {
    "unpack-neighbours": {"torch.cat((low, high), -1)": "torch.stack((low, high), -1).flatten(-2)"},
    "unpack-halves-exchanged": {"(low, high), -1": "(high, low), -1"},
    "unpack-not-masked": {"packed % 16": "packed"},
    "unpack-zero-forgotten": {" - 8": ""},
    "unpack-zero-in-the-middle": ({" - 8": " - 7"}, {" - 8": " - 7.5"}),
    "unpack-below-zero": {CODES: "(torch.cat((low, high), -1) - 8).float()"},
    "unpack-scale-forgotten": {".mul(scales[..., None])": ""},
    "unpack-scale-divides": {".mul(": ".div("},
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
        slips(right_unpack, UNPACK),
        INT4_SAYS,
        show=lambda packed, scales: (
            f"unpack(packed of shape {list(packed.shape)}, scales of {list(scales.shape)})"
        ),
    )


# ---------------------------------------------------------------------- 2.9 the outlier

OUTLIER_SAYS = Diagnoses.of("p2e9_outlier")


def right_find(weight: Tensor) -> int:
    """Row by row."""
    largest = [max(range(len(row)), key=lambda i: abs(row[i])) for row in weight.tolist()]
    return max(set(largest), key=largest.count)


def right_mend(weight: Tensor, column: int) -> Tensor:
    rest = weight.index_fill(1, torch.tensor([column]), 0.0)
    scales = rest.abs().amax(1, keepdim=True) / 127
    back = torch.where(scales > 0, (rest / scales).round() * scales, 0.0)
    back[:, column] = weight[:, column]
    return back


FIND = {
    "find-sign-forgotten": (
        lambda w: int(w.argmax(1).mode().values),
        lambda w: int(w.amax(0).argmax()),
        lambda w: int(w.argmax()) % w.shape[1],
    ),
    "find-largest-weight": (
        lambda w: int(w.abs().amax(0).argmax()),
        lambda w: int(w.abs().sum(0).argmax()),
        lambda w: int(w.square().sum(0).argmax()),
    ),
    "find-signs-cancel": lambda w: int(w.sum(0).abs().argmax()),
    "find-row": (
        lambda w: int(w.abs().argmax(0).mode().values),
        lambda w: int(w.abs().amax(1).argmax()),
    ),
    "find-flat-place": (lambda w: int(w.abs().argmax()), lambda w: int(w.argmax())),
    "find-count": lambda w: int(w.abs().argmax(1).bincount().max()),
}
PUT_BACK = "back[:, column] = weight[:, column]"
MEND = {
    "mend-outlier-decides": (
        {"scales = rest": "scales = weight"},
        {"rest =": "rest = weight  #", PUT_BACK: "pass"},
    ),
    "mend-outlier-lost": {PUT_BACK: "pass"},
    "mend-outlier-cut": {
        "(rest / scales).round()": "(weight / scales).round().clamp(-127, 127)",
        PUT_BACK: "pass",
    },
    "mend-one-scale": {"amax(1, keepdim=True)": "max()"},
    "mend-scale-a-column": {"amax(1,": "amax(0,"},
    "mend-sign-forgotten": {"rest.abs().amax": "rest.amax"},
    "mend-not-rounded": lambda weight, column: weight.clone(),
    "mend-rounded-down": ({".round()": ".trunc()"}, {".round()": ".floor()"}),
    "mend-codes": {".round() * scales": ".round()"},
    "mend-another-range": tuple({"/ 127": f"/ {most}"} for most in (128, 255, 256, 127.5, 7, 15)),
    "mend-nan": When(lambda got, want, *_: isinstance(got, Tensor) and bool(got.isnan().any())),
    "mend-wrong-column": {"index_fill(1,": "index_fill(0,", PUT_BACK: "back[column] = weight[column]"},
}


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
    judge(
        find_outlier,
        [(small,), (below,), (both_signs,), (one_row,), (wide,), (tall,)],
        right_find,
        FIND,
        OUTLIER_SAYS,
        show=lambda weight: f"find_outlier(weight of shape {list(weight.shape)})",
        clean=lambda found: found.item() if isinstance(found, Tensor) and found.ndim == 0 else found,
    )
    zeros = matrix(6, 8, 3)
    zeros[2] = 0.0
    zeros[2, 3] = 12.0  # without the outlier there is nothing in this row
    judge(
        mend,
        [(small, 2), (below, 4), (wide, 28), (tall, 2), (zeros, 3)],
        right_mend,
        slips(right_mend, MEND),
        OUTLIER_SAYS,
        tolerance=1e-6,  # of the outlier: the others are a hundred times as small
        show=lambda weight, column: f"mend(weight of shape {list(weight.shape)}, {column})",
    )


EXERCISES = [
    Exercise("p2e8_int4_groups", ("pack", "unpack"), grade_int4_groups),
    Exercise("p2e9_outlier", ("find_outlier", "mend"), grade_outlier),
]
