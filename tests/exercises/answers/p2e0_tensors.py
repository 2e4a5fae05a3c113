import math

import torch


def in_loops(hidden, table):
    out = torch.zeros(len(hidden), len(table))
    for i, vector in enumerate(hidden):
        scores = [float((vector * word).sum()) for word in table]
        powers = [math.exp(score - max(scores)) for score in scores]
        for j, power in enumerate(powers):
            out[i, j] = power / sum(powers)
    return out


SOFTMAX = "torch.softmax(hidden @ table.T, dim=-1)"
RIGHT = [
    in_loops,
    {SOFTMAX: "(table @ hidden.T).softmax(dim=0).T"},
    {SOFTMAX: 'torch.einsum("nd,vd->nv", hidden, table).log_softmax(1).exp()'},
]
