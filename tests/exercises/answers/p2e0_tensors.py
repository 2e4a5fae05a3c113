"""Answers to p2e0_tensors: right ones, and mistakes by the diagnosis they must get."""

import math

import torch

from tests.exercises.changed import changed


def plain(hidden, table):
    return torch.softmax(hidden @ table.T, dim=-1)


def in_loops(hidden, table):
    out = torch.zeros(len(hidden), len(table))
    for i, vector in enumerate(hidden):
        scores = [float((vector * word).sum()) for word in table]
        powers = [math.exp(score - max(scores)) for score in scores]
        for j, power in enumerate(powers):
            out[i, j] = power / sum(powers)
    return out


def words_first(hidden, table):
    """Words down, tokens across, and turned at the end."""
    return (table @ hidden.T).softmax(dim=0).T


def by_einsum(hidden, table):
    scores = torch.einsum("nd,vd->nv", hidden, table)
    powers = torch.exp(scores - scores.max(dim=1, keepdim=True).values)
    return powers / powers.sum(1, keepdim=True)


def overflows(hidden, table):
    powers = torch.exp(hidden @ table.T)
    return powers / powers.sum(dim=-1, keepdim=True)


RIGHT = [plain, in_loops, words_first, by_einsum]
WRONG = {
    "tensor-no-softmax": lambda hidden, table: hidden @ table.T,
    "tensor-softmax-over-tokens": changed(plain, {"dim=-1": "dim=0"}),
    "tensor-softmax-over-all": lambda hidden, table: (
        torch.exp(hidden @ table.T) / torch.exp(hidden @ table.T).sum()
    ),
    "tensor-turned": [
        changed(words_first, {".softmax(dim=0).T": ".softmax(dim=0)"}),
        lambda hidden, table: torch.softmax(table @ hidden.T, dim=1),
    ],
    "tensor-not-transposed": changed(plain, {"table.T": "table"}),
    "tensor-only-the-last": [
        lambda hidden, table: plain(hidden[-1:], table),
        lambda hidden, table: plain(hidden[-1], table),
    ],
    "tensor-shares-of-scores": lambda hidden, table: (
        (scores := hidden @ table.T) / scores.sum(1, keepdim=True)
    ),
    "tensor-likeliest": lambda hidden, table: plain(hidden, table).argmax(dim=1),
    "tensor-scaled": changed(plain, {"hidden @ table.T": "hidden @ table.T / math.sqrt(table.shape[1])"}),
    "tensor-logarithms": lambda hidden, table: torch.log_softmax(hidden @ table.T, -1),
    "tensor-overflows": overflows,
}
