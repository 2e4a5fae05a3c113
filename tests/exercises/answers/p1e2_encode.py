def all_of_one_rank_at_a_time(word, ranks):
    """Merge every occurrence of the best pair before looking again, as in training."""
    parts = [bytes([b]) for b in word]
    while True:
        known = [(ranks[a + b], a, b) for a, b in zip(parts, parts[1:]) if a + b in ranks]
        if not known:
            return [ranks[p] for p in parts]
        _, a, b = min(known)
        out, i = [], 0
        while i < len(parts):
            if parts[i : i + 2] == [a, b]:
                out.append(a + b)
                i += 2
            else:
                out.append(parts[i])
                i += 1
        parts = out


RIGHT = [all_of_one_rank_at_a_time]
