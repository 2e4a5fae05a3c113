"""Graders of exercises 4.7, 4.8 and 4.11: copied drafts, which drafts are accepted, a mask for a small language."""

import random
from collections.abc import Callable

from exercises.judging.judge import Exercise

# ---------------------------------------------------------------------- 4.7 copied drafts

LENGTHS, PLACES = "range(min(most, len(tokens) - 1), least - 1, -1)", "range(len(tokens) - length)"
AS_TEXT = "''.join(map(str, tokens[place:])).startswith(''.join(map(str, ending)))"
COPIED = Exercise(
    "p4e7_copied_drafts",
    propose={
        "last-place": {PLACES: f"reversed({PLACES})"},
        "shortest-ending": {LENGTHS: "range(least, min(most, len(tokens) - 1) + 1)"},
        "ignores-the-minimum": {"least - 1, -1": "0, -1"},
        "ignores-the-maximum": {"min(most, len(tokens) - 1)": "len(tokens) - 1"},
        "only-the-maximum": {LENGTHS: "[most]"},
        "finds-itself": {PLACES: "reversed(range(len(tokens)))"},
        "overlap-missed": {PLACES: "range(len(tokens) - 2 * length + 1)"},
        "wants-all-k": {"== ending:": "== ending and place + length + k <= len(tokens):"},
        "proposes-the-ending": {"tokens[place + length :][:k]": "tokens[place : place + k]"},
        "more-than-k": {"[:k]": ""},
        "compares-digits": {"tokens[place : place + length] == ending": AS_TEXT},
    },
)


@COPIED.grader
def grade_copied_drafts(propose: Callable) -> None:
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
        ([1, 23, 4, 5, 12, 3], 2, 2, 2),  # the same digits, other tokens
    ]
    for _ in range(200):
        tokens = [rng.randrange(rng.choice((2, 3, 6))) for _ in range(rng.randint(0, 24))]
        least = rng.randint(1, 3)
        cases.append((tokens, least, least + rng.randint(0, 3), rng.randint(1, 5)))
    COPIED.judge("propose", propose, cases)


# ---------------------------------------------------------------------- 4.8 verified drafts

REJECTED, LEFT = "points[j] >= p[j][x] / q[j][x]", "max(a - b, 0)"
REDRAWN, BONUS = "[*drafts[:j], draw(left, points[-1])]", "[*drafts, draw(p[-1], points[-1])]"
KEPT = f"[x for j, x in enumerate(drafts) if not {REJECTED}]"
VERIFIED = Exercise(
    "p4e8_verified_drafts",
    verify={
        "resamples-from-p": {LEFT: "a"},
        "resamples-from-q": {LEFT: "max(b - a, 0)"},
        "weights-below-zero": {LEFT: "a - b"},
        "greedy-comparison": {REJECTED: "p[j].index(max(p[j])) != x"},
        "reuses-the-point": {REDRAWN: "[*drafts[:j], draw(left, points[j])]"},
        "no-bonus-token": {BONUS: "drafts"},
        "nothing-in-its-place": {REDRAWN: "drafts[:j]"},
        "keeps-the-rejected": {REDRAWN: "[*drafts[: j + 1], draw(left, points[-1])]"},
        "goes-on-behind": {REDRAWN: f"[*{KEPT}, draw(p[-1], points[-1])]"},
        "stands-with-p": {REJECTED: "points[j] >= p[j][x]"},
        "accepts-at-the-ratio": {"points[j] >=": "points[j] >"},
        "ratio-upside-down": {REJECTED: "points[j] * p[j][x] >= q[j][x]"},
        "bonus-from-the-row-before": {BONUS: "[*drafts, draw(p[max(len(p) - 2, 0)], points[-1])]"},
    },
)


def _distribution(rng: random.Random, size: int, zeros: float) -> list[float]:
    weights = [0.0 if rng.random() < zeros else rng.random() ** 3 + 0.01 for _ in range(size)]
    weights[rng.randrange(size)] += 0.2
    return [w / sum(weights) for w in weights]


@VERIFIED.grader
def grade_verified_drafts(verify: Callable) -> None:
    rng = random.Random(8)
    p, q = [[0.5, 0.2, 0.3], [0.1, 0.1, 0.8]], [[0.2, 0.7, 0.1]]
    exact = [[0.25, 0.75, 0.0], [0.0, 0.0, 1.0]], [[0.5, 0.25, 0.25]]
    cases = [
        (p, q, [1], [0.1, 0.5]),
        (p, q, [1], [0.6, 0.9]),
        (p, q, [0], [0.99, 0.05]),
        (p[:1], [], [], [0.6]),
        (*exact, [0], [0.5, 0.0]),  # the point equals p / q, which is 0.5
        (*exact, [2], [0.0, 0.5]),  # and 0
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
    VERIFIED.judge("verify", verify, cases)


# ---------------------------------------------------------------------- 4.11 a mask

ENDS, ALIVE = "state in accepting if", "return reached in alive"
MASK = Exercise(
    "p4e11_mask",
    mask={
        "first-character-only": {"in token:": "in token[:1]:"},
        "whole-text-only": {ALIVE: "return reached in accepting"},
        "dead-ends": {ALIVE: "return True"},
        "one-move-from-the-end": {"while more": "if more"},
        "starts-anew": {"reached = state": "reached = 0"},
        "end-always": {ENDS: "True if"},
        "end-never": {ENDS: "False if"},
        "end-where-alive": {ENDS: "state in alive if"},
        "empty-tokens": {'token != "" and ': ""},
    },
)


@MASK.grader
def grade_mask(mask: Callable) -> None:
    moves = {0: {"a": 1, "x": 9}, 1: {"b": 2}, 2: {"c": 3}, 3: {}, 9: {"x": 9}}
    tokens = ["", "a", "ab", "abd", "b", "x", "c"]
    cases = [(moves, {2, 3}, state, tokens, 0) for state in moves]
    rng = random.Random(11)
    for _ in range(150):
        states = range(rng.randint(2, 6))
        moves = {s: {c: rng.choice(states) for c in "abc" if rng.random() < 0.5} for s in states}
        tokens = ["".join(rng.choices("abc", k=rng.choice((0, 1, 1, 2, 3)))) for _ in range(8)]
        end = rng.randrange(8)
        tokens[end] = ""
        cases.append((moves, {rng.choice(states)}, rng.choice(states), tokens, end))

    MASK.judge("mask", mask, cases)
