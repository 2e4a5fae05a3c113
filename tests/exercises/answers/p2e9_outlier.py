"""Answers to p2e9_outlier: right ones, and mistakes by the diagnosis they must get."""

import torch


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


FOUND = "int(largest.bincount().argmax())"
SCALES = "scales = rest.abs().amax(dim=1, keepdim=True) / 127"
PUT_BACK = "back[:, column] = weight[:, column]"
RIGHT = [(find_by_counting, mend_row_by_row), (find_by_mode, mend_by_mask)]
WRONG = {
    "find-sign-forgotten": {"weight.abs()": "weight"},
    "find-signs-cancel": {FOUND: "int(weight.mean(dim=0).abs().argmax())"},
    "find-largest-weight": [
        {FOUND: "int(weight.abs().max(dim=0).values.argmax())"},
        {FOUND: "weight.norm(dim=0).argmax()"},
        {FOUND: "weight.abs().mean(dim=0).argmax()"},
        {FOUND: "int(weight.abs().argmax()) % weight.shape[1]"},
    ],
    "find-row": {"argmax(dim=1)": "argmax(dim=0)"},
    "find-flat-place": {FOUND: "weight.abs().argmax()"},
    "find-count": {"bincount().argmax()": "bincount().max()"},
    "mend-outlier-decides": [
        {"rest[:, column] = 0\n    ": "", SCALES: f"{SCALES}\n    rest[:, column] = 0"},
        {"rest[:, column] = 0": "pass"},
    ],
    "mend-outlier-lost": [{PUT_BACK: "pass"}, {"weight.clone()": "weight"}],
    "mend-outlier-cut": {
        "(rest / scales": "(weight / scales",
        ".round()": ".round().clamp(-127, 127)",
        PUT_BACK: "pass",
    },
    "mend-one-scale": {"amax(dim=1, keepdim=True)": "max()"},
    "mend-scale-a-column": {"amax(dim=1": "amax(dim=0"},
    "mend-sign-forgotten": {"rest.abs().amax": "rest.amax"},
    "mend-not-rounded": {".round()": ""},
    "mend-rounded-down": [{".round()": ".to(torch.int8)"}, {".round()": ".floor()"}],
    "mend-codes": {"codes * scales": "codes"},
    "mend-another-range": [{"/ 127": "/ 128"}, {"/ 127": "/ 255"}],
    "mend-nan": {".clamp(min=1e-30)": ""},
    "mend-wrong-column": {"[:, column]": "[column]"},
    "changes-its-input": {"rest = weight.clone()": "rest, weight = weight, weight.clone()"},
}
