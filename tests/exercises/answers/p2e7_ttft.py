"""Answers to p2e7_ttft: right ones, and mistakes by the diagnosis they must get."""

from tests.exercises.changed import changed


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


def times(num_tokens, num_parameters, bytes_per_parameter, bandwidth, rate):
    return 2 * num_parameters * num_tokens / rate, num_parameters * bytes_per_parameter / bandwidth


RIGHT = [(seconds, free), (seconds_by_cases, free_by_times)]
WRONG = {
    "roofline-adds": (lambda *args: sum(times(*args)), free),
    "roofline-takes-the-faster": [
        (lambda *args: min(times(*args)), free),
        (changed(seconds_by_cases, {"free(": "2 / 3 * free("}), free),  # goes over to arithmetic too early
    ],
    "roofline-one-operation": (changed(seconds, {" * 2 / rate": " / rate"}), free),
    "roofline-weights-for-each-token": (
        lambda num_tokens, num_parameters, bytes_per_parameter, bandwidth, rate: (
            num_tokens * seconds(1, num_parameters, bytes_per_parameter, bandwidth, rate)
        ),
        free,
    ),
    "roofline-bytes-forgotten": (changed(seconds, {" * bytes_per_parameter": ""}), free),
    "roofline-bits": (changed(seconds, {"* bytes_per_parameter": "* 8 * bytes_per_parameter"}), free),
    "roofline-milliseconds": (lambda *args: 1e3 * seconds(*args), free),
    "roofline-only-memory": (lambda *args: times(*args)[1], free),
    "roofline-only-arithmetic": (lambda *args: times(*args)[0], free),
    "roofline-one-token": (lambda num_tokens, *rest: seconds(1, *rest), free),
    "roofline-exchanged": (
        lambda num_tokens, num_parameters, bytes_per_parameter, bandwidth, rate: seconds(
            num_tokens, num_parameters, bytes_per_parameter, rate, bandwidth
        ),
        free,
    ),
    "free-tokens-without-two": (seconds, changed(free, {" / 2": ""})),
    "free-tokens-bytes-forgotten": (seconds, changed(free, {" * bytes_per_parameter": ""})),
    "free-tokens-only-ridge": (seconds, changed(free, {" * bytes_per_parameter / 2": ""})),
    "free-tokens-bits": (seconds, changed(free, {"* bytes_per_parameter": "* 8 * bytes_per_parameter"})),
    "free-tokens-upside-down": (
        seconds,
        lambda bytes_per_parameter, bandwidth, rate: 2 * bandwidth / rate / bytes_per_parameter,
    ),
    "free-tokens-rounded": [
        (
            seconds,
            lambda bytes_per_parameter, bandwidth, rate: int(free(bytes_per_parameter, bandwidth, rate)),
        ),
        (seconds, free_by_trying),
    ],
}
