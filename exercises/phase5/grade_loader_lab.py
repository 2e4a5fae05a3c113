"""Grader of debugging lab 5b: blocks that are given away while a transfer still writes into them."""

import random
from typing import Any

from exercises.grading import Diagnoses, Exercise, call, guard, look
from exercises.judging.judge import sentence_number

THE_CAUSE = 4
SAYS = Diagnoses.of("p5d2_blocks_still_written")


def grade_loader_lab(Loader: type, cause: Any) -> str:
    number = sentence_number(cause)
    _the_symptom(Loader)
    _aborted_after_arrival(Loader)
    steps = sum(_random_users(Loader, seed) for seed in range(40))
    if number != THE_CAUSE:
        raise SAYS.no("another-cause", "cause", repr(cause), "the number of another sentence")
    return f"The symptom is gone; everybody read their own words in {steps:,} steps of random users, and no block was lost."


def _the_symptom(Loader: type) -> None:
    tried = "alice asks (3 steps), is aborted after one; bob asks (1 step); everybody goes on"
    m = guard(Loader, 8, tried=tried)
    guard(m.ask, "alice", ["once", "there", "was"], 3, tried=tried)
    guard(m.step, tried=tried)
    guard(m.abort, "alice", tried=tried)
    guard(m.ask, "bob", ["a", "king"], 1, tried=tried)
    for _ in range(3):
        guard(m.step, tried=tried)
        _look(m, {"bob": ["a", "king"]}, tried)
    guard(m.end, "bob", tried=tried)
    _all_free(m, tried, "never-freed")


def _aborted_after_arrival(Loader: type) -> None:
    tried = "alice asks (1 step); her words arrive; then she is aborted"
    m = guard(Loader, 8, tried=tried)
    guard(m.ask, "alice", ["once", "there"], 1, tried=tried)
    guard(m.step, tried=tried)
    _look(m, {"alice": ["once", "there"]}, tried)
    guard(m.abort, "alice", tried=tried)
    guard(m.step, tried=tried)
    _look(m, {}, tried)
    _all_free(m, tried, "held-after-arrival")


def _random_users(Loader: type, seed: int) -> int:
    rng, steps = random.Random(seed), 0
    tried = f"users ask, are aborted and go at random (seed {seed})"
    m = guard(Loader, 16, tried=tried)
    texts: dict[str, list[str]] = {}  # of the users that are there
    due: dict[str, int] = {}  # steps to their arrival
    for number in range(120):
        what = rng.random()
        if what < 0.35 and len(look(m, "free")) >= 4:
            user = f"user {number}"
            texts[user] = [f"{number}.{i}" for i in range(rng.randint(1, 4))]
            due[user] = rng.randint(1, 5)
            guard(m.ask, user, texts[user], due[user], tried=tried)
        elif what < 0.5 and texts:
            user = rng.choice(sorted(texts))
            guard(m.abort, user, tried=tried)
            del texts[user]
        elif what < 0.6 and (here := sorted(user for user in texts if due[user] <= 0)):
            guard(m.end, user := rng.choice(here), tried=tried)
            del texts[user]
        else:
            guard(m.step, tried=tried)
            due = {user: left - 1 for user, left in due.items()}
            _look(m, {user: words for user, words in texts.items() if due[user] <= 0}, tried)
            steps += 1
    for user in list(texts):
        guard(m.abort, user, tried=tried)
    for _ in range(6):
        guard(m.step, tried=tried)
    _all_free(m, tried, "never-freed")
    return steps


def _look(m: Any, texts: dict[str, list[str]], tried: str) -> None:
    """Whose words have come reads them; nobody else is there."""
    free, ready = look(m, "free", "ready")
    if len(set(free)) < len(free):
        raise SAYS.no("freed-twice", tried, f"free: {free}", "each block once")
    for user, words in texts.items():
        if user not in ready:
            raise SAYS.no("never-ready", tried, f"ready: {sorted(ready)}", f"{user} among them")
        if (reads := call(m.read, user)) != words:
            raise SAYS.no("overwritten", tried, f"{user} reads {reads}", f"{user} reads {words}")
    if strangers := sorted(ready - texts.keys()):
        raise SAYS.no("ready-after-abort", tried, f"ready: {strangers}", "nobody who has gone")


def _all_free(m: Any, tried: str, diagnosis: str) -> None:
    _look(m, {}, tried)
    free, memory = look(m, "free", "memory")
    if len(free) != len(memory) - 1:
        tried += "; then everybody has gone, and all transfers are over"
        raise SAYS.no(diagnosis, tried, f"{len(free)} blocks are free", f"{len(memory) - 1}")


EXERCISES = [
    Exercise("p5d2_blocks_still_written", ("Loader", "cause"), grade_loader_lab),
]
