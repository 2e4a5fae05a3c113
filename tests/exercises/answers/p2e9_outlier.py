"""Answers to p2e9_outlier: right ones, and mistakes by the diagnosis they must get."""

import torch

from tests.exercises.changed import changed


def find_outlier(weight):
    largest = weight.abs().argmax(dim=1)
    return int(largest.bincount().argmax())


def mend(weight, column):
    rest = weight.clone()
    rest[:, column] = 0
    scales = rest.abs().amax(dim=1, keepdim=True) / 127
    codes = (rest / scales.clamp(min=1e-30)).round()
    back = codes * scales
    back[:, column] = weight[:, column]
    return back


def find_by_counting(weight):
    ruined = [0] * weight.shape[1]
    for row in weight:
        ruined[max(range(len(row)), key=lambda i: row[i] ** 2)] += 1
    return ruined.index(max(ruined))


def find_by_mode(weight):
    return weight.abs().max(dim=1).indices.mode().values


def mend_row_by_row(weight, column):
    rows = []
    for row in weight:
        others = torch.cat((row[:column], row[column + 1 :]))
        scale = max(others.max(), -others.min()) / 127
        back = row if scale == 0 else torch.round(row / scale) * scale
        rows.append(torch.where(torch.arange(len(row)) == column, row, back))
    return torch.stack(rows)


def mend_by_mask(weight, column):
    kept = torch.zeros(weight.shape[1], dtype=torch.bool)
    kept[column] = True
    rest = weight.masked_fill(kept, 0)
    scales = rest.abs().max(1).values[:, None] / 127
    return torch.where(kept, weight, ((rest / scales).round() * scales).nan_to_num())


def keeps_a_row(weight, column):
    rest = weight.clone()
    rest[column] = 0
    scales = rest.abs().amax(dim=1, keepdim=True) / 127
    back = (rest / scales.clamp(min=1e-30)).round() * scales
    back[column] = weight[column]
    return back


def cuts_the_outlier(weight, column):
    rest = weight.clone()
    rest[:, column] = 0
    scales = rest.abs().amax(dim=1, keepdim=True) / 127
    return (weight / scales.clamp(min=1e-30)).round().clamp(-127, 127) * scales


def takes_out_after_the_scale(weight, column):
    scales = weight.abs().amax(dim=1, keepdim=True) / 127
    back = (weight / scales).round() * scales
    back[:, column] = weight[:, column]
    return back


RIGHT = [(find_outlier, mend), (find_by_counting, mend_row_by_row), (find_by_mode, mend_by_mask)]
WRONG = {
    "find-sign-forgotten": (changed(find_outlier, {".abs()": ""}), mend),
    "find-signs-cancel": (lambda weight: int(weight.mean(dim=0).abs().argmax()), mend),
    "find-largest-weight": [
        (lambda weight: int(weight.abs().max(dim=0).values.argmax()), mend),
        (lambda weight: weight.norm(dim=0).argmax(), mend),
        (lambda weight: weight.abs().mean(dim=0).argmax(), mend),
        (lambda weight: int(weight.abs().argmax()) % weight.shape[1], mend),
    ],
    "find-row": (changed(find_outlier, {"dim=1": "dim=0"}), mend),
    "find-flat-place": (lambda weight: weight.abs().argmax(), mend),
    "find-count": (changed(find_outlier, {"bincount().argmax()": "bincount().max()"}), mend),
    "mend-outlier-decides": [
        (find_outlier, takes_out_after_the_scale),
        (find_outlier, changed(mend, {"rest[:, column] = 0": "pass"})),
    ],
    "mend-outlier-lost": [
        (find_outlier, changed(mend, {"back[:, column] = weight[:, column]": "pass"})),
        (find_outlier, changed(mend, {"weight.clone()": "weight"})),
    ],
    "mend-outlier-cut": (find_outlier, cuts_the_outlier),
    "mend-one-scale": (find_outlier, changed(mend, {"amax(dim=1, keepdim=True)": "max()"})),
    "mend-scale-a-column": (find_outlier, changed(mend, {"dim=1": "dim=0"})),
    "mend-sign-forgotten": (find_outlier, changed(mend, {"rest.abs().amax": "rest.amax"})),
    "mend-not-rounded": (find_outlier, changed(mend, {".round()": ""})),
    "mend-rounded-down": [
        (find_outlier, changed(mend, {".round()": ".to(torch.int8)"})),
        (find_outlier, changed(mend, {".round()": ".floor()"})),
    ],
    "mend-codes": (find_outlier, changed(mend, {"codes * scales": "codes"})),
    "mend-another-range": [
        (find_outlier, changed(mend, {"127": "128"})),
        (find_outlier, changed(mend, {"127": "255"})),
    ],
    "mend-nan": (find_outlier, changed(mend, {".clamp(min=1e-30)": ""})),
    "mend-wrong-column": (find_outlier, keeps_a_row),
    "changes-its-input": (
        find_outlier,
        changed(mend, {"rest = weight.clone()": "rest, weight = weight, weight.clone()"}),
    ),
}
