"""Graders of exercises 4.7 and 4.8: copied drafts, and which drafts stand."""

import random
from collections.abc import Callable

from exercises.grading import Diagnoses, Exercise, NotYet, show
from exercises.judging.judge import judge, variants
from exercises.phase4.drafting import draw
from exercises.phase4.visitors import BY_HAND

COPIED = Diagnoses.of("p4e7_copied_drafts")
VERIFIED = Diagnoses.of("p4e8_verified_drafts")


def _propose(tokens, least, most, k, mistake=""):
    lengths = range(min(most, len(tokens) - 1), least - 1, -1)
    if mistake == "shortest-ending":
        lengths = reversed(lengths)
    elif mistake == "ignores-the-minimum":
        lengths = range(min(most, len(tokens) - 1), 0, -1)
    elif mistake == "ignores-the-maximum":
        lengths = range(len(tokens) - 1, least - 1, -1)
    elif mistake == "only-the-maximum":
        lengths = [most] if most < len(tokens) else []
    for length in lengths:
        ending = tokens[len(tokens) - length :]
        last = len(tokens) - length - (length - 1 if mistake == "overlap-missed" else 0)
        places = [i for i in range(last) if tokens[i : i + length] == ending]
        if mistake == "finds-itself":
            places = [len(tokens) - length]
        if mistake == "wants-all-k":
            places = [i for i in places if i + length + k <= len(tokens)]
        if places:
            place = places[-1] if mistake == "last-place" else places[0]
            begin = place if mistake == "proposes-the-ending" else place + length
            return tokens[begin:] if mistake == "more-than-k" else tokens[begin : begin + k]
    return []


def _token_list(result):
    if not isinstance(result, (list, tuple)):
        raise NotYet("wrong-type", f"A list of token ids is asked for, and {show(result, 60)} came back.")
    return [int(token) for token in result]


def grade_copied_drafts(propose: Callable) -> str:
    rng = random.Random(5)
    cases = [
        ([7, 1, 2, 3, 4, 5, 9, 2, 3], 2, 3, 2),
        ([8, 8, 8, 8], 1, 2, 3),
        ([1, 2, 3], 1, 3, 2),
        ([5], 1, 3, 2),
        ([], 1, 2, 2),
        ([1, 2, 9, 1, 2, 8, 1, 2], 2, 2, 1),
        ([1, 2, 3, 4, 2, 3, 1, 2, 3], 1, 4, 3),
        ([4, 5, 6, 4], 2, 3, 2),
        ([1, 2, 1, 2, 1, 2, 1], 3, 3, 4),
    ]
    for _ in range(200):
        tokens = [rng.randrange(rng.choice((2, 3, 6))) for _ in range(rng.randint(0, 24))]
        least = rng.randint(1, 3)
        cases.append((tokens, least, least + rng.randint(0, 3), rng.randint(1, 5)))
    judge(
        propose,
        cases,
        _propose,
        variants(_propose, COPIED),
        COPIED,
        show=lambda tokens, least, most, k: f"{tokens}, least {least}, most {most}, k {k}",
        clean=_token_list,
        otherwise=BY_HAND,
    )
    return f"{len(cases)} texts, with endings that occur often, once, and never."


def _verify(p, q, drafts, points, mistake=""):
    at = points[-1]
    for j, x in enumerate(drafts):
        ratio = p[j][x] / q[j][x]
        stands = points[j] < ratio
        if mistake == "greedy-comparison":
            stands = x == max(range(len(p[j])), key=p[j].__getitem__)
        elif mistake == "stands-with-p":
            stands = points[j] < p[j][x]
        elif mistake == "ratio-upside-down":
            stands = p[j][x] == 0 or points[j] < q[j][x] / p[j][x]
        if stands:
            continue
        if mistake == "goes-on-behind":
            continue
        left = [max(a - b, 0) for a, b in zip(p[j], q[j], strict=True)]
        if mistake == "resamples-from-p":
            left = p[j]
        elif mistake == "resamples-from-q":
            left = [max(b - a, 0) for a, b in zip(p[j], q[j], strict=True)]
        if mistake == "reuses-the-point":
            at = points[j]
        if mistake == "nothing-in-its-place":
            return list(drafts[:j])
        kept = drafts[: j + 1] if mistake == "keeps-the-rejected" else drafts[:j]
        return [*kept, draw(left, at)]
    if mistake == "no-bonus-token":
        return list(drafts)
    if mistake == "goes-on-behind":
        good = [x for j, x in enumerate(drafts) if points[j] < p[j][x] / q[j][x]]
        return [*good, draw(p[-1], at)]
    if mistake == "bonus-from-the-row-before":
        return [*drafts, draw(p[-2] if len(p) > 1 else p[-1], at)]
    return [*drafts, draw(p[-1], at)]


def _distribution(rng, size, zeros):
    weights = [0.0 if rng.random() < zeros else rng.random() ** 3 + 0.01 for _ in range(size)]
    weights[rng.randrange(size)] += 0.2
    return [w / sum(weights) for w in weights]


def grade_verified_drafts(verify: Callable) -> str:
    rng = random.Random(8)
    p, q = [[0.5, 0.2, 0.3], [0.1, 0.1, 0.8]], [[0.2, 0.7, 0.1]]
    cases = [
        (p, q, [1], [0.1, 0.5]),
        (p, q, [1], [0.6, 0.9]),
        (p, q, [0], [0.99, 0.05]),
        (p[:1], [], [], [0.6]),
    ]
    for _ in range(200):
        k, size = rng.randint(0, 4), rng.randint(2, 6)
        ps = [_distribution(rng, size, 0.2) for _ in range(k + 1)]
        # Often a good guesser: near p.
        qs = []
        for row in ps[:k]:
            noise, share = _distribution(rng, size, 0.0), rng.choice((0.1, 0.4, 1.0))
            qs.append([(1 - share) * a + share * b for a, b in zip(row, noise, strict=True)])
        drafts = [rng.choices(range(size), row)[0] for row in qs]
        cases.append((ps, qs, drafts, [rng.random() for _ in range(k + 1)]))

    def as_call(p, q, drafts, points):
        def rows(rows):
            return "[" + ", ".join("[" + ", ".join(f"{x:.2f}" for x in row) + "]" for row in rows) + "]"

        return f"p {rows(p)}, q {rows(q)}, drafts {drafts}, points [{', '.join(f'{x:.2f}' for x in points)}]"

    judge(
        verify,
        cases,
        _verify,
        variants(_verify, VERIFIED),
        VERIFIED,
        show=as_call,
        clean=_token_list,
        otherwise=BY_HAND,
    )
    return f"{len(cases)} steps with 0 to 4 drafts, good guessers and bad ones."


EXERCISES = [
    Exercise("p4e7_copied_drafts", ("propose",), grade_copied_drafts),
    Exercise("p4e8_verified_drafts", ("verify",), grade_verified_drafts),
]
