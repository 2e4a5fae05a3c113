"""Answers to exercise 5.2 that learners give."""

import math

import torch


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


def merged(outs, log_sums, weights=None, divide=True, log=None):
    """With empty parts and an empty whole done right; `weights` and `log` say what is done wrong."""
    there = log_sums > -math.inf
    if not there.any():
        return torch.zeros(outs.shape[1]), torch.tensor(-math.inf)
    outs, logs = outs[there], log_sums[there]
    w = (logs - logs.max()).exp() if weights is None else weights(logs)
    out = w @ outs / (w.sum() if divide else 1)
    return out, logs.logsumexp(0) if log is None else log(logs)


def straight(outs, log_sums):
    """The formula as it stands."""
    weights = torch.exp(log_sums)
    return (weights[:, None] * outs).nansum(0) / weights.sum(), weights.sum().log()


def reads_empty_parts(outs, log_sums):
    largest = log_sums.max()
    if largest == -math.inf:
        return torch.zeros(outs.shape[1]), largest
    weights = torch.exp(log_sums - largest)
    return weights @ outs / weights.sum(), largest + weights.sum().log()


def from_the_first_part(outs, log_sums):
    """One part after the other; the first is taken as it is, be it empty or not."""
    out, log_sum = outs[0], log_sums[0]
    for part, log_part in zip(outs[1:], log_sums[1:]):
        if log_part > -math.inf:
            both = torch.logaddexp(log_sum, log_part)
            out = out * (log_sum - both).exp() + part * (log_part - both).exp()
            log_sum = both
    return out, log_sum


def nothing_is_nan(outs, log_sums):
    """No case for nothing at all."""
    weights = torch.exp(log_sums - log_sums.max())
    outs = torch.nan_to_num(outs)
    return weights @ outs / weights.sum(), log_sums.logsumexp(0)


def zero_for_nothing(outs, log_sums):
    """The result of nothing is zeros, and its logarithm is 0."""
    out, log_sum = with_softmax(outs, log_sums)
    return out, torch.nan_to_num(log_sum, neginf=0.0)


def subtracts_in_place(outs, log_sums):
    largest = log_sums.max().clone()
    if largest == -math.inf:
        return torch.zeros(outs.shape[1]), largest
    log_sums -= largest
    out, log_sum = with_softmax(outs, log_sums)
    return out, largest + log_sum


def clears_empty_parts_in_place(outs, log_sums):
    outs[log_sums == -math.inf] = 0.0
    return with_softmax(outs, log_sums)


RIGHT = [two_at_a_time, with_softmax]
WRONG = {
    "averaged": lambda outs, log_sums: (outs.mean(0), log_sums.logsumexp(0)),
    "outs-added": lambda outs, log_sums: merged(
        outs, log_sums, lambda logs: torch.ones(len(logs)), divide=False
    ),
    "log-as-weight": lambda outs, log_sums: merged(outs, log_sums, lambda logs: logs),
    "not-divided": lambda outs, log_sums: merged(outs, log_sums, divide=False),
    "powers-of-two": lambda outs, log_sums: merged(outs, log_sums, lambda logs: 2.0 ** (logs - logs.max())),
    "best-part-only": lambda outs, log_sums: (outs[log_sums.argmax()], log_sums.logsumexp(0)),
    "no-maximum": straight,
    "empty-part-is-read": [reads_empty_parts, from_the_first_part],
    # Empty parts get the logarithm 0.
    "empty-part-counts": lambda outs, log_sums: with_softmax(
        torch.nan_to_num(outs), torch.nan_to_num(log_sums, neginf=0.0)
    ),
    "all-empty": [nothing_is_nan, zero_for_nothing],
    "log-sum-is-the-maximum": lambda outs, log_sums: merged(outs, log_sums, log=lambda logs: logs.max()),
    "log-sums-added": lambda outs, log_sums: merged(outs, log_sums, log=lambda logs: logs.sum()),
    "log-sums-averaged": lambda outs, log_sums: merged(outs, log_sums, log=lambda logs: logs.mean()),
    "maximum-not-added-back": lambda outs, log_sums: merged(
        outs, log_sums, log=lambda logs: (logs - logs.max()).exp().sum().log()
    ),
    "sum-without-logarithm": lambda outs, log_sums: merged(outs, log_sums, log=lambda logs: logs.exp().sum()),
    "not-a-pair": lambda outs, log_sums: merged(outs, log_sums)[0],
    "changes-its-input": [subtracts_in_place, clears_empty_parts_in_place],
}
