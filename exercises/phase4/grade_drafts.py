"""Graders of exercises 4.7 and 4.8: copied drafts, and which drafts stand."""

import random
from collections.abc import Callable

from exercises.grading import Diagnoses, Exercise, NotYet, show
from exercises.judging.judge import judge
from exercises.judging.slips import slips
from exercises.phase4.drafting import draw
from exercises.phase4.small_requests import BY_HAND

COPIED = Diagnoses.of("p4e7_copied_drafts")
VERIFIED = Diagnoses.of("p4e8_verified_drafts")


def _propose(tokens, least, most, k):
    for length in range(min(most, len(tokens) - 1), least - 1, -1):
        ending = tokens[len(tokens) - length :]
        places = [i for i in range(len(tokens) - length) if tokens[i : i + length] == ending]
        if places:
            begin = places[0] + length
            return tokens[begin : begin + k]
    return []


LENGTHS = "range(min(most, len(tokens) - 1), least - 1, -1)"
COPIED_WRONG = {
    "last-place": {"places[0]": "places[-1]"},
    "shortest-ending": {LENGTHS: f"reversed({LENGTHS})"},
    "ignores-the-minimum": {"least - 1": "0"},
    "ignores-the-maximum": {"min(most, len(tokens) - 1)": "len(tokens) - 1"},
    "only-the-maximum": {LENGTHS: "[most] if most < len(tokens) else []"},
    "finds-itself": {"if places:": "if True:", "places[0] + length": "len(tokens)"},
    "overlap-missed": {"range(len(tokens) - length)": "range(len(tokens) - 2 * length + 1)"},
    "wants-all-k": {"== ending]": "== ending and i + length + k <= len(tokens)]"},
    "proposes-the-ending": {"places[0] + length": "places[0]"},
    "more-than-k": {"begin : begin + k": "begin:"},
}


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
        slips(_propose, COPIED_WRONG),
        COPIED,
        show=lambda tokens, least, most, k: f"{tokens}, least {least}, most {most}, k {k}",
        clean=_token_list,
        otherwise=BY_HAND,
    )
    return f"{len(cases)} texts, with endings that occur often, once, and never."


def _verify(p, q, drafts, points):
    for j, x in enumerate(drafts):
        if points[j] * q[j][x] < p[j][x]:
            continue
        left = [max(a - b, 0) for a, b in zip(p[j], q[j], strict=True)]
        return [*drafts[:j], draw(left, points[-1])]
    return [*drafts, draw(p[-1], points[-1])]


STANDS, BONUS = "points[j] * q[j][x] < p[j][x]", "[*drafts, draw(p[-1], points[-1])]"
REDRAWN = "[*drafts[:j], draw(left, points[-1])]"
VERIFIED_WRONG = {
    "resamples-from-p": {"max(a - b, 0)": "a"},
    "resamples-from-q": {"a - b": "b - a"},
    "greedy-comparison": {STANDS: "x == max(range(len(p[j])), key=p[j].__getitem__)"},
    "reuses-the-point": {REDRAWN: "[*drafts[:j], draw(left, points[j])]"},
    "no-bonus-token": {BONUS: "list(drafts)"},
    "nothing-in-its-place": {REDRAWN: "list(drafts[:j])"},
    "keeps-the-rejected": {"*drafts[:j]": "*drafts[: j + 1]"},
    "goes-on-behind": lambda p, q, drafts, points: [
        *(x for j, x in enumerate(drafts) if points[j] * q[j][x] < p[j][x]),
        draw(p[-1], points[-1]),
    ],
    "stands-with-p": {STANDS: "points[j] < p[j][x]"},
    "ratio-upside-down": {STANDS: "points[j] * p[j][x] < q[j][x]"},
    "bonus-from-the-row-before": {BONUS: "[*drafts, draw(p[max(len(p) - 2, 0)], points[-1])]"},
}


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
        slips(_verify, VERIFIED_WRONG),
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
