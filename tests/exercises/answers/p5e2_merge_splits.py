"""Answers to exercise 5.2 that learners give."""

import math

import torch

from tests.exercises.changed import changed


def two_at_a_time(outs, log_sums):
    """Right: takes in one part after the other."""
    out, log_sum = torch.zeros(outs.shape[1]), torch.tensor(-math.inf)
    for part, log_part in zip(outs, log_sums):
        if log_part == -math.inf:
            continue
        both = torch.logaddexp(log_sum, log_part)
        out = out * (log_sum - both).exp() + part * (log_part - both).exp()
        log_sum = both
    return out, log_sum


def with_softmax(outs, log_sums):
    """Right: softmax and logsumexp of the parts that are there."""
    there = log_sums > -math.inf
    if not there.any():
        return torch.zeros(outs.shape[1]), torch.tensor(-math.inf)
    return log_sums[there].softmax(0) @ outs[there], log_sums[there].logsumexp(0)


def straight(outs, log_sums):
    """The formula as it stands."""
    weights = torch.exp(log_sums)
    return (weights[:, None] * outs).nansum(0) / weights.sum(), weights.sum().log()


LARGEST = "largest = log_sums.max()"
WEIGHTS = "weights = torch.exp(log_sums - largest)"
NO_NAN = "outs = outs.where(weights[:, None] > 0, 0.0)"
OUT, LOG = "weights @ outs / total", "largest + total.log()"
THERE = "log_sums[weights > 0]"
NOTHING = "torch.zeros(outs.shape[1]), largest"
FROM_THE_FIRST = {
    "torch.zeros(outs.shape[1]), torch.tensor(-math.inf)": "outs[0], log_sums[0]",
    "zip(outs, log_sums)": "zip(outs[1:], log_sums[1:])",
}
RIGHT = [two_at_a_time, with_softmax]
WRONG = {
    "averaged": lambda outs, log_sums: (outs.mean(0), log_sums.logsumexp(0)),
    "outs-added": {OUT: "outs.sum(0)"},
    "log-as-weight": {OUT: f"{THERE} @ outs[weights > 0] / {THERE}.sum()"},
    "not-divided": {OUT: "weights @ outs"},
    "powers-of-two": {OUT: "(powers := 2.0 ** (log_sums - largest)) @ outs / powers.sum()"},
    "best-part-only": {OUT: "outs[log_sums.argmax()]"},
    "no-maximum": straight,
    "empty-part-is-read": [{NO_NAN: "pass"}, changed(two_at_a_time, FROM_THE_FIRST)],
    # Empty parts get the logarithm 0.
    "empty-part-counts": {
        LARGEST: "outs, log_sums = outs.nan_to_num(), log_sums.nan_to_num(neginf=0.0)\n    largest = log_sums.max()"
    },
    "all-empty": [{"if largest == -torch.inf:": "if False:"}, {NOTHING: f"{NOTHING}.new_zeros(())"}],
    "log-sum-is-the-maximum": {LOG: "largest"},
    "log-sums-added": {LOG: f"{THERE}.sum()"},
    "log-sums-averaged": {LOG: f"{THERE}.mean()"},
    "maximum-not-added-back": {LOG: "total.log()"},
    "sum-without-logarithm": {LOG: "largest.exp() * total"},
    "not-a-pair": {f", {LOG}": ""},
    "changes-its-input": [
        {WEIGHTS: "weights = torch.exp(log_sums.sub_(largest))"},
        {NO_NAN: "outs[weights == 0] = 0.0"},
    ],
}
