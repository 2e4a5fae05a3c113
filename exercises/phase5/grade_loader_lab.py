"""Grader of debugging lab 5b: blocks that are given away while a transfer still writes into them."""

import random
from typing import Any

from exercises.judging.judge import expect_cause
from exercises.judging.scripts import first_is
from exercises.judging.solutions import Solution

SEEN = "; sorted(m.ready); sorted(m.free)"
SCRIPTS = [
    "m = Loader(8); m.ask('alice', ['once', 'there', 'was'], 3); m.step(); m.abort('alice'); m.ask('bob', ['a', 'king'], 1)"
    "; m.step(); m.read('bob'); m.step(); m.read('bob'); m.step(); m.read('bob'); m.end('bob')" + SEEN,
    "m = Loader(8); m.ask('alice', ['once', 'there'], 1); m.step(); m.read('alice'); m.abort('alice'); m.step()"
    + SEEN,
]


def _random_script(seed: int) -> str:
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
LAB = Solution(
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


@LAB.grader
def grade_loader_lab(loader: type, cause: Any) -> None:
    LAB.judge_scripts("Loader", loader, [*SCRIPTS, *map(_random_script, range(20))])
    expect_cause(cause, LAB.answers["cause"], LAB.says())
