# As vLLM does it: cut what holds, with all that is less likely, no more than 1 - p.
RIGHT = [
    {"before < p": "ordered.double().flip(0).cumsum(0).flip(0) > 1 - p + 1e-9"},
    {"kept = torch.zeros_like(probs)\n    kept[places] = ": "kept = probs\n    kept[places] = "},  # in place
]
