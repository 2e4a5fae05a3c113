RIGHT = {
    "except ConnectionError": "except OSError",
    "min(num_good * block_size, num_tokens - 1)": "num_good * block_size if num_good * block_size < num_tokens else num_tokens - 1",
}
