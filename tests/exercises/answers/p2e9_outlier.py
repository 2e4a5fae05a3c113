import torch


def find_by_counting(weight):
    ruined = [0] * weight.shape[1]
    for row in weight:
        ruined[max(range(len(row)), key=lambda i: row[i] ** 2)] += 1
    return ruined.index(max(ruined))


def mend_row_by_row(weight, column):
    rows = []
    for row in weight:
        others = torch.cat((row[:column], row[column + 1 :]))
        scale = max(others.max(), -others.min()) / 127
        back = row if scale == 0 else torch.round(row / scale) * scale
        rows.append(torch.where(torch.arange(len(row)) == column, row, back))
    return torch.stack(rows)


RIGHT = [(find_by_counting, mend_row_by_row)]
