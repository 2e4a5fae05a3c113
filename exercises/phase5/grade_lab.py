"""Grader of the debugging lab 5.D: a recording that stores rows of users that have left."""

import random
from typing import Any

from exercises.grading import Diagnoses, Exercise, call, guard, look
from exercises.judging.judge import sentence_number
from exercises.phase5.small_graph import ROWS

THE_CAUSE = 3
SAYS = Diagnoses.of("p5d1_words_of_the_departed")


def grade_lab(Runner: type, cause: Any) -> str:
    number = sentence_number(cause)
    runners = [_first_step(Runner), _the_symptom(Runner), *_a_full_memory(Runner)]
    steps = 0
    for seed in range(30):
        runner, more = _random_users(Runner, seed)
        runners, steps = [*runners, runner], steps + more
    most = max(look(runner, "recordings") for runner in runners)
    if most > 1:  # last of all: the box says that every user reads its own text
        tried = f"{steps:,} steps of random users"
        raise SAYS.no("recorded-anew", tried, f"up to {most} recordings for one runner", "1 recording")
    if number != THE_CAUSE:
        raise SAYS.no("another-cause", "cause", repr(cause), "the number of another sentence")
    return f"The symptom is gone, with one recording; every user read their own text in each of {steps:,} steps of random users."


def _first_step(Runner: type) -> Any:
    tried = "alice alone, with the text [11, 12], writes 13"
    m = guard(Runner, 6, 4, tried=tried)
    guard(m.start, "alice", [11, 12], tried=tried)
    guard(m.step, {"alice": 13}, tried=tried)
    _look(Runner, m, 1, tried)
    return m


def _the_symptom(Runner: type) -> Any:
    tried = (
        "four users write; carol and dan leave; emma comes and gets dan's block; alice, bob and emma write"
    )
    m = guard(Runner, 6, 4, tried=tried)
    for user, prompt in {"alice": [11, 12], "bob": [21], "carol": [31, 32], "dan": [41, 42]}.items():
        guard(m.start, user, prompt, tried=tried)
    guard(m.step, {"alice": 13, "bob": 22, "carol": 33, "dan": 43}, tried=tried)
    _look(Runner, m, 4, tried)
    guard(m.end, "carol", tried=tried)
    guard(m.end, "dan", tried=tried)
    guard(m.start, "emma", [51, 52, 53], tried=tried)
    guard(m.step, {"alice": 14, "bob": 23, "emma": 54}, tried=tried)
    _look(Runner, m, 3, tried)
    return m


def _a_full_memory(Runner: type) -> list[Any]:
    tried = "four users have filled all blocks but block 0; one leaves, gina comes and writes alone"
    users, runners = {"alice": 10, "bob": 20, "carol": 30, "dan": 40}, []
    for order in (list(users), list(users)[::-1]):  # else padding might store what is there already
        m = guard(Runner, 5, 4, tried=tried)
        for user, first in users.items():
            guard(m.start, user, [first, first + 1, first + 2], tried=tried)
        guard(m.step, {user: users[user] + 3 for user in order}, tried=tried)
        _look(Runner, m, 4, tried)
        guard(m.end, "bob", tried=tried)
        guard(m.start, "gina", [70, 71], tried=tried)
        for token in (72, 73):
            guard(m.step, {"gina": token}, tried=tried)
            _look(Runner, m, 1, tried)
        runners.append(m)
    return runners


def _random_users(Runner: type, seed: int) -> tuple[Any, int]:
    rng = random.Random(seed)
    size, steps = rng.choice([1, 2, 4]), 0
    tried = f"up to four users come, write and go at random, blocks of {size} (seed {seed})"
    m = guard(Runner, 1 + 40 // size, size, tried=tried)
    for number in range(60):
        texts = look(m, "texts")
        alive = list(texts)
        if len(alive) < ROWS and rng.random() < 0.35:
            prompt = [rng.randrange(10, 1000) for _ in range(rng.randint(1, 4))]
            guard(m.start, f"user {number}", prompt, tried=tried)
        elif alive and (rng.random() < 0.25 or any(len(texts[user]) >= 9 for user in alive)):
            guard(m.end, max(alive, key=lambda user: (len(texts[user]) >= 9, rng.random())), tried=tried)
        elif alive:
            rng.shuffle(alive)  # not every user writes in each step: a prompt may wait
            chosen = alive[: rng.randint(1, len(alive))]
            guard(m.step, {user: rng.randrange(10, 1000) for user in chosen}, tried=tried)
            _look(Runner, m, len(chosen), tried)
            steps += 1
    return m, steps


def _look(Runner: type, m: Any, n: int, tried: str) -> None:
    """Every user reads their own text."""
    seen, recorded_slots, tokens, slots, texts = call(_seen, m)
    if not seen:
        raise SAYS.no(
            "recording-does-not-see-it",
            tried,
            f"the recording reads slots {recorded_slots}",
            f"slots {slots}",
        )
    for user, text in texts.items():
        reads = guard(m.read, user, tried=tried)
        if reads != text:
            diagnosis = call(_name, Runner, m, n)
            rows = f"\nthe recording's rows: tokens {tokens}, slots {slots}"
            if (
                diagnosis == "writes-into-anothers-block"
            ):  # nothing is done yet: that would be the cause already
                rows = ""
            raise SAYS.no(diagnosis, tried, f"{user} reads {reads}{rows}", f"{user} reads {text}")


def _seen(m: Any) -> tuple[bool, list[int], list[int], list[int], dict[str, list[int]]]:
    """Whether the recording reads the runner's own rows; its slots; the runner's tokens, slots and texts."""
    recorded_tokens, recorded_slots, _ = m.recorded
    seen = m.tokens is recorded_tokens and m.slots is recorded_slots
    return seen, recorded_slots.tolist(), m.tokens.tolist(), m.slots.tolist(), dict(m.texts)


def _name(Runner: type, m: Any, n: int) -> str:
    """What goes wrong: four users write, and then only one of them."""
    last = [m.slot(user, len(text) - 1) for user, text in m.texts.items()]
    if any(int(slot) not in last for slot in m.slots[:n]):
        return "step-not-stored"
    probe = Runner(20, 4)
    for i in range(ROWS):
        probe.start(f"user {i}", [10 * i + 1])
    probe.step({f"user {i}": 10 * i + 2 for i in range(ROWS)})
    before, tokens = probe.slots.tolist(), probe.tokens.tolist()
    probe.step({"user 0": 3})
    stale = [row for row in range(1, ROWS) if int(probe.slots[row]) == before[row]]
    if len(stale) == ROWS - 1:
        changed = [row for row in stale if int(probe.tokens[row]) != tokens[row]]
        return "token-cleared-slot-not" if changed else "writes-into-anothers-block"
    return "some-rows-left" if stale else "padding-in-a-real-block"


EXERCISES = [
    Exercise("p5d1_words_of_the_departed", ("Runner", "cause"), grade_lab),
]
