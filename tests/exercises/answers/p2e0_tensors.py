"""Answers to p2e0_tensors: right ones, and mistakes by the diagnosis they must get."""

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
WRONG = {
    "tensor-no-softmax": {SOFTMAX: "hidden @ table.T"},
    "tensor-softmax-over-tokens": {"dim=-1": "dim=0"},
    "tensor-softmax-over-all": {SOFTMAX: "torch.exp(hidden @ table.T) / torch.exp(hidden @ table.T).sum()"},
    "tensor-turned": [
        {SOFTMAX: "torch.softmax(table @ hidden.T, dim=0)"},
        {SOFTMAX: "torch.softmax(table @ hidden.T, dim=1)"},
    ],
    "tensor-not-transposed": {"table.T": "table"},
    "tensor-only-the-last": [{"hidden @": "hidden[-1:] @"}, {"hidden @": "hidden[-1] @"}],
    "tensor-shares-of-scores": {SOFTMAX: "(scores := hidden @ table.T) / scores.sum(1, keepdim=True)"},
    "tensor-likeliest": {SOFTMAX: f"{SOFTMAX}.argmax(dim=1)"},
    "tensor-scaled": {"hidden @ table.T": "hidden @ table.T / table.shape[1] ** 0.5"},
    "tensor-logarithms": {"torch.softmax": "torch.log_softmax"},
    "tensor-overflows": {
        SOFTMAX: "(powers := torch.exp(hidden @ table.T)) / powers.sum(dim=-1, keepdim=True)"
    },
}
