RIGHT = {
    "free_after.index(min(free_after))": "min(range(max_num_seqs), key=free_after.__getitem__)",
    "return done": "return tuple(done)",
}
