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


def straight(outs, log_sums):
    """The formula as it stands."""
    weights = torch.exp(log_sums)
    return (weights[:, None] * outs).nansum(0) / weights.sum(), weights.sum().log()


RIGHT = [two_at_a_time]
WRONG = {
    "no-maximum": straight,
    "not-a-pair": {", largest + total.log()": ""},
    "changes-its-input": [
        {"weights = torch.exp(log_sums - largest)": "weights = torch.exp(log_sums.sub_(largest))"},
        {"outs = outs.where(weights[:, None] > 0, 0.0)": "outs[weights == 0] = 0.0"},
    ],
}
