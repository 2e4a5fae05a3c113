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


RIGHT = [in_loops]
