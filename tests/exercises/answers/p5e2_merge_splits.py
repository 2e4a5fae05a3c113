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


def average(outs, log_sums):
    return outs.mean(0), log_sums.logsumexp(0)


def added(outs, log_sums):
    return merged(outs, log_sums, lambda logs: torch.ones(len(logs)), divide=False)


def logs_as_weights(outs, log_sums):
    return merged(outs, log_sums, lambda logs: logs)


def not_divided(outs, log_sums):
    return merged(outs, log_sums, divide=False)


def base_two(outs, log_sums):
    return merged(outs, log_sums, lambda logs: 2.0 ** (logs - logs.max()))


def winner_takes_all(outs, log_sums):
    return outs[log_sums.argmax()], log_sums.logsumexp(0)


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


def nothing_is_nan(outs, log_sums):
    """No case for nothing at all."""
    weights = torch.exp(log_sums - log_sums.max())
    outs = torch.nan_to_num(outs)
    return weights @ outs / weights.sum(), log_sums.logsumexp(0)


def zero_for_nothing(outs, log_sums):
    """The result of nothing is zeros, and its logarithm is 0."""
    out, log_sum = with_softmax(outs, log_sums)
    return out, torch.nan_to_num(log_sum, neginf=0.0)


def zero_for_empty(outs, log_sums):
    """Empty parts get the logarithm 0."""
    return with_softmax(torch.nan_to_num(outs), torch.nan_to_num(log_sums, neginf=0.0))


def log_is_maximum(outs, log_sums):
    return merged(outs, log_sums, log=lambda logs: logs.max())


def logs_added(outs, log_sums):
    return merged(outs, log_sums, log=lambda logs: logs.sum())


def logs_averaged(outs, log_sums):
    return merged(outs, log_sums, log=lambda logs: logs.mean())


def maximum_forgotten(outs, log_sums):
    return merged(outs, log_sums, log=lambda logs: (logs - logs.max()).exp().sum().log())


def no_logarithm(outs, log_sums):
    return merged(outs, log_sums, log=lambda logs: logs.exp().sum())


def only_out(outs, log_sums):
    return merged(outs, log_sums)[0]


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
    "averaged": average,
    "outs-added": added,
    "log-as-weight": logs_as_weights,
    "not-divided": not_divided,
    "powers-of-two": base_two,
    "best-part-only": winner_takes_all,
    "no-maximum": straight,
    "empty-part-is-read": reads_empty_parts,
    "empty-part-counts": zero_for_empty,
    "all-empty": nothing_is_nan,
    "log-sum-is-the-maximum": log_is_maximum,
    "log-sums-added": logs_added,
    "log-sums-averaged": logs_averaged,
    "maximum-not-added-back": maximum_forgotten,
    "sum-without-logarithm": no_logarithm,
    "not-a-pair": only_out,
    "changes-its-input": subtracts_in_place,
}
ALSO_WRONG = [("changes-its-input", clears_empty_parts_in_place), ("all-empty", zero_for_nothing)]
