"""Graders of two weights in a byte, and of the outlier that ruins absmax."""

from collections.abc import Callable

import torch
from torch import Tensor

from exercises.grading import Diagnoses, Exercise
from exercises.judging.judge import When, judge

# ---------------------------------------------------------------------- 2.8 two weights in a byte

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


# ---------------------------------------------------------------------- 2.9 the outlier

OUTLIER_SAYS = Diagnoses.of("p2e9_outlier")


def right_find(weight: Tensor) -> int:
    """Row by row."""
    largest = [max(range(len(row)), key=lambda i: abs(row[i])) for row in weight.tolist()]
    return max(set(largest), key=largest.count)


def rounded(weight: Tensor, scales: Tensor) -> Tensor:
    return torch.where(scales > 0, (weight / scales).round() * scales, 0.0)


def row_scales(weight: Tensor) -> Tensor:
    return weight.abs().amax(1, keepdim=True) / 127


def without(weight: Tensor, column: int) -> Tensor:
    return weight.index_fill(1, torch.tensor([column]), 0.0)


def mend_with(
    make_scales: Callable[[Tensor], Tensor] = row_scales,
    round_: Callable[[Tensor, Tensor], Tensor] = rounded,
) -> Callable[[Tensor, int], Tensor]:
    """The column is left out, `make_scales` and `round_` see the rest, and the column is put back."""

    def mend(weight: Tensor, column: int) -> Tensor:
        rest = without(weight, column)
        back = round_(rest, make_scales(rest))
        back[:, column] = weight[:, column]
        return back

    return mend


right_mend = mend_with()


def _outlier_decides(weight: Tensor, column: int, put_back: bool = True) -> Tensor:
    back = rounded(weight, row_scales(weight))
    if put_back:
        back[:, column] = weight[:, column]
    return back


def _outlier_cut(weight: Tensor, column: int) -> Tensor:
    scales = row_scales(without(weight, column))
    codes = torch.where(scales > 0, weight / scales, 0.0).round().clamp(-127, 127)
    return codes * scales


def _keeps_a_row(weight: Tensor, column: int) -> Tensor:
    rest = weight.clone()
    rest[column] = 0
    back = rounded(rest, row_scales(rest))
    back[column] = weight[column]
    return back


def _codes(rest: Tensor, scales: Tensor) -> Tensor:
    return torch.where(scales > 0, rest / scales, 0.0).round()


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
MEND = {
    "mend-outlier-decides": (_outlier_decides, lambda w, c: _outlier_decides(w, c, put_back=False)),
    "mend-outlier-lost": lambda w, c: without(right_mend(w, c), c),
    "mend-outlier-cut": _outlier_cut,
    "mend-one-scale": mend_with(lambda rest: rest.abs().max() / 127),
    "mend-scale-a-column": mend_with(lambda rest: rest.abs().amax(0, keepdim=True) / 127),
    "mend-sign-forgotten": mend_with(lambda rest: rest.amax(1, keepdim=True) / 127),
    "mend-not-rounded": lambda w, c: w.clone(),
    "mend-rounded-down": (
        mend_with(round_=lambda rest, scales: torch.where(scales > 0, (rest / scales).trunc() * scales, 0.0)),
        mend_with(round_=lambda rest, scales: torch.where(scales > 0, (rest / scales).floor() * scales, 0.0)),
    ),
    "mend-codes": mend_with(round_=_codes),
    "mend-another-range": tuple(
        mend_with(lambda rest, most=most: rest.abs().amax(1, keepdim=True) / most)
        for most in (128, 255, 256, 127.5, 7, 15)
    ),
    "mend-nan": When(lambda got, want, *_: isinstance(got, Tensor) and bool(got.isnan().any())),
    "mend-wrong-column": _keeps_a_row,
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
        MEND,
        OUTLIER_SAYS,
        tolerance=1e-6,  # of the outlier: the others are a hundred times as small
        show=lambda weight, column: f"mend(weight of shape {list(weight.shape)}, {column})",
    )


EXERCISES = [
    Exercise("p2e8_int4_groups", ("pack", "unpack"), grade_int4_groups),
    Exercise("p2e9_outlier", ("find_outlier", "mend"), grade_outlier),
]
