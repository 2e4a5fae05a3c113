RIGHT = {  # other books
    "deque(range(1, num_blocks))": "list(range(1, num_blocks))",
    "popleft()": "pop(0)",
    "[0] * num_blocks": "dict.fromkeys(range(num_blocks), 0)",
    'MemoryError("no free block")': "MemoryError",
}
