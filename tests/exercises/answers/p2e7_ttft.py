def seconds_by_cases(num_tokens, num_parameters, bytes_per_parameter, bandwidth, rate):
    """First which is slower, then how slow."""
    if num_tokens > free_by_times(bytes_per_parameter, bandwidth, rate):
        operations = num_parameters + num_parameters  # multiplications, additions
        return operations * num_tokens / rate
    return num_parameters / (bandwidth / bytes_per_parameter)


def free_by_times(bytes_per_parameter, bandwidth, rate):
    """How often the time of one token's arithmetic goes into the time of fetching."""
    return (1e9 * bytes_per_parameter / bandwidth) / (2 * 1e9 / rate)


RIGHT = [(seconds_by_cases, free_by_times)]
