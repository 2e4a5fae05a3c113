RIGHT = {
    "max(computing, fetching)": "computing if num_tokens > tokens_for_free(bytes_per_parameter, bandwidth, rate) else fetching",
    "bytes_per_parameter * rate / (2 * bandwidth)": "(1e9 * bytes_per_parameter / bandwidth) / (2e9 / rate)",
}
