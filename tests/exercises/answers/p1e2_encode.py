"""Answers to p1e2_encode: right ones, and mistakes by the diagnosis they must get."""

from tests.exercises.changed import changed


def by_ids(word, ranks):
    parts = [bytes([b]) for b in word]
    while len(parts) > 1:
        best, at = None, None
        for i in range(len(parts) - 1):
            rank = ranks.get(parts[i] + parts[i + 1])
            if rank is not None and (best is None or rank < best):
                best, at = rank, i
        if at is None:
            break
        parts = [*parts[:at], parts[at] + parts[at + 1], *parts[at + 2 :]]
    return [ranks[p] for p in parts]


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


def leftmost(word, ranks):
    parts = [bytes([b]) for b in word]
    joined = True
    while joined:
        joined = False
        for i in range(len(parts) - 1):
            if parts[i] + parts[i + 1] in ranks:
                parts[i : i + 2] = [parts[i] + parts[i + 1]]
                joined = True
                break
    return [ranks[p] for p in parts]


def one_pass(word, ranks):
    out = []
    for b in word:
        piece = bytes([b])
        if out and out[-1] + piece in ranks:
            out[-1] += piece
        else:
            out.append(piece)
    return [ranks[p] for p in out]


def one_join(word, ranks):
    parts = [bytes([b]) for b in word]
    known = [(ranks[a + b], i) for i, (a, b) in enumerate(zip(parts, parts[1:])) if a + b in ranks]
    if known:
        i = min(known)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return [ranks[p] for p in parts]


def bytes_go_out(word, ranks):
    out = []
    for i in by_ids(word, ranks):
        piece = next(p for p, rank in ranks.items() if rank == i)
        out.append(piece[0] if len(piece) == 1 else i)
    return out


RIGHT = [by_ids, all_of_one_rank_at_a_time]
WRONG = {
    "encode-longest-first": longest,
    "encode-leftmost-first": leftmost,
    "encode-one-pass": one_pass,
    "encode-highest-rank": changed(by_ids, {"rank < best": "rank > best"}),
    "encode-stops-after-one": one_join,
    "encode-no-joins": lambda word, ranks: [ranks[bytes([b])] for b in word],
    "encode-rightmost-of-equals": changed(by_ids, {"rank < best": "rank <= best"}),
    "encode-bytes-are-not-ids": bytes_go_out,
}
