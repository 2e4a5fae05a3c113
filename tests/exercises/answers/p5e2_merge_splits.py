RIGHT = {"largest + total.log()": "log_sums.logsumexp(0)", "weights @ outs / total": "weights / total @ outs"}
WRONG = {
    "no-maximum": {"largest = log_sums.max()": "largest = torch.tensor(0.0)"},
    "not-a-pair": {", largest + total.log()": ""},
    "changes-its-input": [
        {"weights = torch.exp(log_sums - largest)": "weights = torch.exp(log_sums.sub_(largest))"},
        {"outs = outs.where(weights[:, None] > 0, 0.0)": "outs[weights == 0] = 0.0"},
    ],
}
