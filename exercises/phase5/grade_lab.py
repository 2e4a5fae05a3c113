"""Grader of the debugging lab 5.D: a recording that stores rows of users that have left."""

import random
from typing import Any

from exercises.judging.judge import expect_cause
from exercises.judging.scripts import first_is
from exercises.judging.solutions import Solution
from exercises.phase5.small_graph import ROWS

SEES = "[m.recorded[0] is m.tokens, m.recorded[1] is m.slots]"
FIRST_STEP = f"m = Runner(6, 4); m.start('alice', [11, 12]); m.step({{'alice': 13}}); {SEES}; m.read('alice')"
SYMPTOM = (
    "m = Runner(6, 4); m.start('alice', [11, 12]); m.start('bob', [21]); m.start('carol', [31, 32]); m.start('dan', [41, 42])"
    "; m.step({'alice': 13, 'bob': 22, 'carol': 33, 'dan': 43}); m.read('alice'); m.read('bob'); m.read('carol'); m.read('dan')"
    "; m.end('carol'); m.end('dan'); m.start('emma', [51, 52, 53]); m.step({'alice': 14, 'bob': 23, 'emma': 54})"
    "; m.read('alice'); m.read('bob'); m.read('emma'); m.recordings"
)


def _full_memory(users: dict[str, int]) -> str:
    """Four users have filled all blocks but block 0; one leaves, gina comes and writes alone."""
    lines = ["m = Runner(5, 4)"]
    lines += [f"m.start('{user}', {[first, first + 1, first + 2]})" for user, first in sorted(users.items())]
    lines += [f"m.step({ {user: first + 3 for user, first in users.items()} })", "m.end('bob')"]
    reads = [f"m.read('{user}')" for user in ("alice", "carol", "dan", "gina")]
    lines += ["m.start('gina', [70, 71])", "m.step({'gina': 72})", *reads, "m.step({'gina': 73})", *reads]
    return "; ".join(lines)


def _random_script(seed: int) -> str:
    """Up to four users come, write and go; after each step all of them read."""
    rng = random.Random(seed)
    size = rng.choice([1, 2, 4])
    lines, lengths = [f"m = Runner({1 + 40 // size}, {size})"], {}
    for number in range(60):
        alive = list(lengths)
        if len(alive) < ROWS and rng.random() < 0.35:
            prompt = [rng.randrange(10, 1000) for _ in range(rng.randint(1, 4))]
            lengths[f"user {number}"] = len(prompt)
            lines.append(f"m.start('user {number}', {prompt})")
        elif alive and (rng.random() < 0.25 or max(lengths.values()) >= 9):
            gone = max(alive, key=lambda user: (lengths[user] >= 9, rng.random()))
            lines.append(f"m.end({gone!r})")
            del lengths[gone]
        elif alive:
            rng.shuffle(alive)  # not every user writes in each step: a prompt may wait
            new = {user: rng.randrange(10, 1000) for user in alive[: rng.randint(1, len(alive))]}
            lengths |= {user: lengths[user] + 1 for user in new}
            lines += [f"m.step({new})", *(f"m.read({user!r})" for user in lengths)]
    return "; ".join([*lines, "m.recordings"])


REST, RECORDS = "self.slots[n:] = -1", "\n        self.replay = self.record()"
BY_PLACE = "self.tokens[:n] = torch.tensor(tokens)\n        self.slots[:n] = torch.tensor(slots)"
NEW_TENSORS = {
    BY_PLACE: "self.tokens = torch.tensor(tokens + [0] * (len(self.tokens) - n))",
    REST: "self.slots = torch.tensor(slots + [-1] * (len(self.slots) - n))",
}
LAB = Solution(
    "p5d1_words_of_the_departed",
    Runner={
        "token-cleared-slot-not": {REST: "self.tokens[n:] = 0"},
        # Repairs what the symptom shows, one row; and one place too far, as for positions that begin with 1.
        "some-rows-left": ({REST: "self.slots[n : n + 1] = -1"}, {REST: "self.slots[n + 1 :] = -1"}),
        "padding-in-a-real-block": {REST: "self.slots[n:] = len(self.memory) - 1"},
        "recording-does-not-see-it": NEW_TENSORS,
        "step-not-stored": {REST: "self.slots.fill_(-1)"},
        "recorded-anew": ({**NEW_TENSORS, REST: NEW_TENSORS[REST] + RECORDS}, first_is("m.recordings")),
        "writes-into-anothers-block": ({REST: "pass"}, first_is("m.read")),
    },
    cause={},
)


@LAB.grader
def grade_lab(runner: type, cause: Any) -> None:
    users = {"alice": 10, "bob": 20, "carol": 30, "dan": 40}
    full = [
        _full_memory(users),
        _full_memory(dict(reversed(users.items()))),
    ]  # else padding might store what is there
    LAB.judge_scripts("Runner", runner, [FIRST_STEP, SYMPTOM, *full, *map(_random_script, range(12))])
    expect_cause(cause, LAB.answers["cause"], LAB.says())
