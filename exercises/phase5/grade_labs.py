"""Graders of debugging labs 5 and 5b: a recording that stores rows of users that have left; blocks given away too early."""

import random
from typing import Any

from exercises.judging.judge import Exercise
from exercises.judging.scripts import first_is
from exercises.phase5.small_graph import ROWS

# ---------------------------------------------------------------------- lab 5: stray tokens

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


def _random_steps(seed: int) -> str:
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
GRAPH_LAB = Exercise(
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


@GRAPH_LAB.grader
def grade_lab(runner: type, cause: Any) -> None:
    users = {"alice": 10, "bob": 20, "carol": 30, "dan": 40}
    # In both orders, or padding might store what is there.
    full = [_full_memory(users), _full_memory(dict(reversed(users.items())))]
    GRAPH_LAB.judge_scripts("Runner", runner, [FIRST_STEP, SYMPTOM, *full, *map(_random_steps, range(12))])
    GRAPH_LAB.judge_cause(cause)


# ---------------------------------------------------------------------- lab 5b: words of another request

SEEN = "; sorted(m.ready); sorted(m.free)"
SCRIPTS = [
    "m = Loader(8); m.ask('alice', ['once', 'there', 'was'], 3); m.step(); m.abort('alice'); sorted(m.loading)"
    "; m.ask('bob', ['a', 'king'], 1); m.step(); m.read('bob'); m.step(); m.read('bob'); m.step(); m.read('bob'); m.end('bob')"
    + SEEN,
    "m = Loader(8); m.ask('alice', ['once', 'there'], 1); m.step(); m.read('alice'); m.abort('alice'); m.step()"
    + SEEN,
    "m = Loader(8); m.ask('alice', ['once'], 1); m.abort('alice'); m.step(); m.ask('alice', ['there', 'was'], 1); m.step()"
    "; m.read('alice')" + SEEN,
]


def _random_transfers(seed: int) -> str:
    """Users ask, are aborted and go; those whose words have come read them after each step. Memory is short."""
    rng, lines = random.Random(seed), ["m = Loader(16)"]
    due: dict[str, int] = {}  # of each transfer under way or arrived: steps to its arrival
    blocks: dict[str, int] = {}  # of the same: how many
    gone: set[str] = set()  # aborted while on the way
    for number in range(120):
        what = rng.random()
        there = sorted(due.keys() - gone)
        here = [user for user in there if due[user] <= 0]
        if what < 0.35 and sum(blocks.values()) <= 11:
            user, words = f"user {number}", [f"{number}.{i}" for i in range(rng.randint(1, 4))]
            due[user], blocks[user] = rng.randint(1, 5), len(words)
            lines.append(f"m.ask({user!r}, {words}, {due[user]})")
        elif (what < 0.5 and there) or (what < 0.6 and here):
            user = rng.choice(there if what < 0.5 else here)
            lines.append(f"m.{'abort' if what < 0.5 else 'end'}({user!r})")
            gone.add(user)
        else:
            due = {user: left - 1 for user, left in due.items()}
            reads = [f"m.read({user!r})" for user in due if user not in gone and due[user] <= 0]
            lines += ["m.step()", "sorted(m.ready)", *reads]
        for user in [user for user in gone if due[user] <= 0]:
            gone.remove(user)
            del due[user], blocks[user]
    lines += [f"m.abort({user!r})" for user in due if user not in gone] + ["m.step()"] * 6
    return "; ".join(lines) + SEEN


def _fewer(got: list, want: list) -> bool:
    return len(got) < len(want)


ABORTED, HELD, READY = "if user in self.loading:", "if user in self.held:", "self.ready.add(user)"
RELEASED = "            self.held.remove(user)\n            self.give_back(user)\n"
# As it is handed out: the blocks go back while the transfer still writes.
PLANTED = {ABORTED: "if False:", HELD: "if user not in self.tables:", RELEASED: "            pass\n"}
LOADER_LAB = Exercise(
    "p5d2_blocks_still_written",
    Loader={
        "overwritten": (
            PLANTED,
            {  # the blocks of an aborted user are used again last: rarer, and not gone
                **PLANTED,
                ABORTED: "self.free = self.free + self.tables.pop(user)\n        if True:",
                "self.held.add(user)  #": "return  #",
            },
            first_is("m.read"),
        ),
        "transfer-stopped": (
            {"self.ready.discard(user)": "self.loading.pop(user, None)"},
            first_is("sorted(m.loading)"),
        ),
        "held-after-arrival": {ABORTED: "if True:"},  # as the first version of vLLM's repair
        "ready-after-abort": (  # does nothing while it is loading
            {"self.ready.discard(user)": "if user in self.loading:\n            return"},
            first_is("sorted(m.ready)"),
        ),
        "never-ready": ({READY: "pass"}, first_is("sorted(m.ready)", _fewer)),
        "freed-twice": (  # gives back at the abort and at the arrival
            {
                "self.held.add(user)": "self.held.add(user)\n            self.free = self.tables[user] + self.free"
            },
            first_is("sorted(m.free)", lambda got, want: len(set(got)) < len(got)),
        ),
        "never-freed": ({RELEASED: "            pass\n"}, first_is("sorted(m.free)", _fewer)),
    },
    cause={},
)


@LOADER_LAB.grader
def grade_loader_lab(loader: type, cause: Any) -> None:
    LOADER_LAB.judge_scripts("Loader", loader, [*SCRIPTS, *map(_random_transfers, range(20))])
    LOADER_LAB.judge_cause(cause)
