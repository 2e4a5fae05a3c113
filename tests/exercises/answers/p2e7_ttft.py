"""Answers to p2e7_ttft: right ones, and mistakes by the diagnosis they must get."""


def seconds(num_tokens, num_parameters, bytes_per_parameter, bandwidth, rate):
    return max(num_parameters * bytes_per_parameter / bandwidth, num_tokens * num_parameters * 2 / rate)


def seconds_by_cases(num_tokens, num_parameters, bytes_per_parameter, bandwidth, rate):
    """First who is slower, then how slow."""
    if num_tokens > free(bytes_per_parameter, bandwidth, rate):
        operations = num_parameters + num_parameters  # multiplications, additions
        return operations * num_tokens / rate
    return num_parameters / (bandwidth / bytes_per_parameter)


def free(bytes_per_parameter, bandwidth, rate):
    return rate / bandwidth * bytes_per_parameter / 2


def free_by_times(bytes_per_parameter, bandwidth, rate):
    """How often the time of one token's arithmetic goes into the time of fetching."""
    computing, fetching = times(1, 1e9, bytes_per_parameter, bandwidth, rate)
    return fetching / computing


def free_by_trying(bytes_per_parameter, bandwidth, rate):
    """Longer and longer steps, until one takes longer than the first: whole tokens only."""
    n = 1
    while seconds(n + 1, 1e9, bytes_per_parameter, bandwidth, rate) <= seconds(
        1, 1e9, bytes_per_parameter, bandwidth, rate
    ):
        n += 1
    return n


def free_in_whole_tokens(bytes_per_parameter, bandwidth, rate):
    return int(free(bytes_per_parameter, bandwidth, rate))


def times(num_tokens, num_parameters, bytes_per_parameter, bandwidth, rate):
    return 2 * num_parameters * num_tokens / rate, num_parameters * bytes_per_parameter / bandwidth


def adds(*args):
    return sum(times(*args))


def faster(*args):
    return min(times(*args))


def one_operation(num_tokens, num_parameters, bytes_per_parameter, bandwidth, rate):
    return max(num_parameters * num_tokens / rate, num_parameters * bytes_per_parameter / bandwidth)


def weights_each_time(num_tokens, num_parameters, bytes_per_parameter, bandwidth, rate):
    return num_tokens * seconds(1, num_parameters, bytes_per_parameter, bandwidth, rate)


def bytes_forgotten(num_tokens, num_parameters, bytes_per_parameter, bandwidth, rate):
    return seconds(num_tokens, num_parameters, 1, bandwidth, rate)


def bits(num_tokens, num_parameters, bytes_per_parameter, bandwidth, rate):
    return seconds(num_tokens, num_parameters, 8 * bytes_per_parameter, bandwidth, rate)


def milliseconds(*args):
    return 1e3 * seconds(*args)


def only_memory(*args):
    return times(*args)[1]


def only_arithmetic(*args):
    return times(*args)[0]


def one_token(num_tokens, *rest):
    return seconds(1, *rest)


def exchanged(num_tokens, num_parameters, bytes_per_parameter, bandwidth, rate):
    return seconds(num_tokens, num_parameters, bytes_per_parameter, rate, bandwidth)


def without_two(bytes_per_parameter, bandwidth, rate):
    return bytes_per_parameter * rate / bandwidth


def free_without_bytes(bytes_per_parameter, bandwidth, rate):
    return rate / (2 * bandwidth)


def ridge(bytes_per_parameter, bandwidth, rate):
    return rate / bandwidth


def free_in_bits(bytes_per_parameter, bandwidth, rate):
    return 8 * bytes_per_parameter * rate / bandwidth / 2


def upside_down(bytes_per_parameter, bandwidth, rate):
    return 2 * bandwidth / rate / bytes_per_parameter


RIGHT = [(seconds, free), (seconds_by_cases, free_by_times)]
WRONG = {
    "roofline-adds": (adds, free),
    "roofline-takes-the-faster": (faster, free),
    "roofline-one-operation": (one_operation, free),
    "roofline-weights-for-each-token": (weights_each_time, free),
    "roofline-bytes-forgotten": (bytes_forgotten, free),
    "roofline-bits": (bits, free),
    "roofline-milliseconds": (milliseconds, free),
    "roofline-only-memory": (only_memory, free),
    "roofline-only-arithmetic": (only_arithmetic, free),
    "roofline-one-token": (one_token, free),
    "roofline-exchanged": (exchanged, free),
    "free-tokens-without-two": (seconds, without_two),
    "free-tokens-bytes-forgotten": (seconds, free_without_bytes),
    "free-tokens-only-ridge": (seconds, ridge),
    "free-tokens-bits": (seconds, free_in_bits),
    "free-tokens-upside-down": (seconds, upside_down),
    "free-tokens-rounded": (seconds, free_in_whole_tokens),
}
ALSO_WRONG = [("free-tokens-rounded", (seconds, free_by_trying))]
