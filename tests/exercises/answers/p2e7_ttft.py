"""Answers to p2e7_ttft: right ones, and mistakes by the diagnosis they must get."""


def seconds_by_cases(num_tokens, num_parameters, bytes_per_parameter, bandwidth, rate):
    """First which is slower, then how slow."""
    if num_tokens > free_by_times(bytes_per_parameter, bandwidth, rate):
        operations = num_parameters + num_parameters  # multiplications, additions
        return operations * num_tokens / rate
    return num_parameters / (bandwidth / bytes_per_parameter)


def free_by_times(bytes_per_parameter, bandwidth, rate):
    """How often the time of one token's arithmetic goes into the time of fetching."""
    return (1e9 * bytes_per_parameter / bandwidth) / (2 * 1e9 / rate)


SLOWER = "max(computing, fetching)"
BYTES = "num_parameters * bytes_per_parameter"
FREE = "bytes_per_parameter * rate / (2 * bandwidth)"
RIGHT = [(seconds_by_cases, free_by_times)]
WRONG = {
    "roofline-adds": {SLOWER: "computing + fetching"},
    "roofline-takes-the-faster": [
        {SLOWER: "min(computing, fetching)"},
        {
            SLOWER: "computing if 1.5 * computing > fetching else fetching"
        },  # goes over to arithmetic too early
    ],
    "roofline-one-operation": {"2 * num_parameters": "num_parameters"},
    "roofline-weights-for-each-token": {BYTES: f"num_tokens * {BYTES}"},
    "roofline-bytes-forgotten": {BYTES: "num_parameters"},
    "roofline-bits": {BYTES: f"8 * {BYTES}"},
    "roofline-milliseconds": {SLOWER: f"1e3 * {SLOWER}"},
    "roofline-only-memory": {SLOWER: "fetching"},
    "roofline-only-arithmetic": {SLOWER: "computing"},
    "roofline-one-token": {" * num_tokens": ""},
    "roofline-exchanged": {
        "num_tokens / rate": "num_tokens / bandwidth",
        f"{BYTES} / bandwidth": f"{BYTES} / rate",
    },
    "free-tokens-without-two": {"(2 * bandwidth)": "bandwidth"},
    "free-tokens-bytes-forgotten": {FREE: "rate / (2 * bandwidth)"},
    "free-tokens-only-ridge": {FREE: "rate / bandwidth"},
    "free-tokens-bits": {FREE: f"8 * {FREE}"},
    "free-tokens-upside-down": {FREE: "2 * bandwidth / rate / bytes_per_parameter"},
    "free-tokens-rounded": [{FREE: f"int({FREE})"}, {FREE: f"{FREE} // 1"}],
}
