RIGHT = [
    {
        "free_after.index(min(free_after))": "min(range(seats), key=free_after.__getitem__)",
        "return done": "return tuple(done)",
    }
]
