"""Answers to p1e2_encode: right ones, and mistakes by the diagnosis they must get."""


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


def longest(word, ranks):
    ids = []
    while word:
        for end in range(len(word), 0, -1):
            if word[:end] in ranks:
                ids.append(ranks[word[:end]])
                word = word[end:]
                break
    return ids


def one_pass(word, ranks):
    out = []
    for b in word:
        piece = bytes([b])
        if out and out[-1] + piece in ranks:
            out[-1] += piece
        else:
            out.append(piece)
    return [ranks[p] for p in out]


RIGHT = [all_of_one_rank_at_a_time]
WRONG = {"encode-longest-first": longest, "encode-one-pass": one_pass}
