"""Graders of exercises 3.1, 3.2 and 3.4: blocks given out, looked up, and forgotten."""

import random
from collections.abc import Callable

from exercises.judging.judge import Exercise, When
from exercises.judging.scripts import first_is

# ---------------------------------------------------------------------- 3.1 allocate and free

REFUSED = "a = Allocator(4); b = a.take(); c = a.take(); a.share(b); a.give_back([c]); a.give_back([{}])"
REFUSED += "; a.num_free; a.give_back([b]); a.num_free; a.give_back([b]); a.num_free"
SCRIPTS = [
    "a = Allocator(4); a.take(); a.take(); a.take(); a.num_free; a.take()",
    "a = Allocator(3); b = a.take(); a.give_back([b]); a.num_free",
    "a = Allocator(3); b = a.take(); a.share(b); a.give_back([b]); a.num_free; a.give_back([b]); a.num_free",
    "a = Allocator(4); b = a.take(); a.give_back([b]); a.give_back([b])",
    "a = Allocator(4); a.give_back([2])",
    REFUSED.format("b, c"),
    REFUSED.format("c, b"),
    "a = Allocator(4); b = a.take(); a.take(); a.give_back([b]); a.take(); a.take()",
    "a = Allocator(4); t = [a.take(), a.take()]; a.give_back(t); t",
]


def _random_script(seed: int) -> str:
    """Requests come, fork and go."""
    rng, lines = random.Random(seed), ["a = Allocator(12)"]
    tables: dict[str, set] = {}  # by the name of a table: the blocks that it lists
    for step in range(60):
        what, name = rng.random(), f"t{step}"
        held = set().union(*tables.values())
        if what < 0.5 and len(held) < 9:
            blocks = rng.randint(1, 3)
            lines.append(f"{name} = [a.take() for _ in range({blocks})]")
            tables[name] = {(name, i) for i in range(blocks)}
        elif what < 0.7 and tables:
            twin = rng.choice(list(tables))
            lines.append(f"{name} = [a.share(b) or b for b in {twin}]")
            tables[name] = tables[twin]
        elif tables:
            gone = rng.choice(list(tables))
            lines.append(f"a.give_back({gone})")
            del tables[gone]
        lines.append("a.num_free")
    return "; ".join([*lines, *(f"a.give_back({name})" for name in tables), "a.num_free"])


FREED, COUNTED_DOWN = "self.free.append(block)", "self.ref_count[block] -= 1"
CHECKED = "if any(self.ref_count[block] == 0 for block in blocks):"
# Refuses when it comes to the free block, with the others given back already.
HALF_DONE = {
    CHECKED: "if False:",
    COUNTED_DOWN: f'if not self.ref_count[block]:\n                raise ValueError("free")\n            {COUNTED_DOWN}',
}
ALLOCATE = Exercise(
    "p3e1_allocate",
    Allocator={
        "null-block-given-out": {"range(1, num_blocks)": "range(num_blocks)"},
        "takes-from-the-wrong-end": {"popleft()": "pop()"},
        "block-given-out-twice": {"self.free.popleft()": "self.free[0]"},
        "wrong-end-of-memory": (
            {"if not self.free:": "if False:"},
            {'raise MemoryError("no free block")': "return None"},
        ),
        "taken-and-not-counted": {"self.ref_count[block] = 1": "pass"},
        "gives-back-to-the-front": (
            {FREED: "self.free.appendleft(block)"},
            {FREED: f"{FREED}\n                self.free = deque(sorted(self.free))"},
        ),
        "freed-while-shared": (
            {COUNTED_DOWN: "self.ref_count[block] = 0"},
            {"self.ref_count[block] += 1": "return block"},
            first_is("a.num_free", lambda got, want: got > want),
        ),
        "blocks-lost": (
            {
                COUNTED_DOWN: f"if self.ref_count[block] > 1:\n                continue\n            {COUNTED_DOWN}"
            },
            {FREED: "pass"},
            first_is("a.num_free", lambda got, want: got < want),
        ),
        "double-free": (
            {CHECKED: "if False:", "if self.ref_count[block] == 0:": "if self.ref_count[block] <= 0:"},
            {"raise ValueError(": "raise AssertionError("},
            {"[0] * num_blocks": "[1] * num_blocks"},
            first_is("", lambda got, want: want == "ValueError"),
        ),
        "freed-in-reverse": {"in blocks:\n": "in reversed(blocks):\n"},
        "refused-and-half-done": (
            HALF_DONE,
            {**HALF_DONE, "in blocks:\n": "in reversed(blocks):\n"},
            {  # frees nothing when it refuses, but the counts are lowered by then
                f"{COUNTED_DOWN}\n            if": "if",
                CHECKED: f"for block in blocks:\n            {COUNTED_DOWN}\n        if min(self.ref_count) < 0:",
            },
        ),
        "changes-its-input": {
            FREED: f"{FREED}\n                blocks[:] = [b for b in blocks if b != block]"
        },
    },
)


@ALLOCATE.grader
def grade_allocator(allocator: type) -> None:
    ALLOCATE.judge_scripts("Allocator", allocator, [*SCRIPTS, *map(_random_script, range(20))])


# ---------------------------------------------------------------------- 3.2 block table lookup


OF_16 = [{f"{sign} block_size": f"{sign} 16"} for sign in ("//", "*", "%")]
TOKENS = "range(first, first + num_tokens)"
SLOTS = Exercise(
    "p3e2_block_table",
    slots={
        "logical-as-physical": {"block_table[token // block_size]": "token // block_size"},
        "block-id-not-multiplied": {"physical * block_size": "physical"},
        "place-in-block-forgotten": {" + token % block_size": ""},
        "starts-at-token-zero": {TOKENS: "range(num_tokens)"},
        "runs-on-past-the-block": {"return found": "return list(range(found[0], found[0] + num_tokens))"},
        "quotient-and-rest-swapped": {
            "token // block_size": "token % block_size",
            "+ token % block_size": "+ token // block_size",
        },
        "one-token-late": {TOKENS: "range(first + 1, first + num_tokens + 1)"},
        "too-few-slots": When(lambda got, want, *_: len(got) < len(want)),
        "too-many-slots": When(lambda got, want, *_: len(got) > len(want)),
        "block-size-fixed": (*OF_16, OF_16[0] | OF_16[1] | OF_16[2]),
    },
)


@SLOTS.grader
def grade_slots(slots: Callable[[list[int], int, int, int], list[int]]) -> None:
    cases = [([7, 3, 9, 2], 2, 5, 4), ([5], 0, 4, 4), ([2, 8], 7, 1, 4)]
    rng = random.Random(0)
    for _ in range(40):
        size, blocks = rng.choice([1, 4, 16]), rng.randint(1, 6)
        first = rng.randrange(size * blocks)
        n = rng.randint(1, size * blocks - first)
        cases.append((rng.sample(range(1, 50), blocks), first, n, size))
    SLOTS.judge("slots", slots, cases, clean=lambda result: [int(slot) for slot in result])


# ---------------------------------------------------------------------- 3.4 eviction order

FIVE = "; ".join(["f.take()"] * 5)
FREE_LISTS = [
    "f = FreeList([1, 2, 3]); f.take(); f.take(); f.take()",
    *(f"f = FreeList([4, 5]); f.give_back([1, 2, 3], {num_full}); {FIVE}" for num_full in (3, 2, 1)),
    f"f = FreeList([4, 5]); f.give_back([1, 2, 3], 3); f.hit(2); f.give_back([6], 1); {FIVE}",
    "f = FreeList([4, 5]); t = [1, 2, 3]; f.give_back(t, 2); t",
]

ROW, LEAVES = "nameless[::-1] + self.blocks + named[::-1]", "self.blocks.remove(block)"
EVICTION = Exercise(
    "p3e4_eviction",
    FreeList={
        "evicts-most-recent": ({"pop(0)": "pop()"}, {ROW: "table[::-1] + self.blocks"}),
        "head-evicted-first": {"[::-1]": ""},
        "nameless-kept": ({ROW: "self.blocks + table[::-1]"}, {ROW: "self.blocks + named[::-1] + nameless"}),
        "nameless-turned-round": {"nameless[::-1]": "nameless"},
        # As in an LRU cache that keeps what is in use; and a hit that does nothing.
        "hit-still-free": ({LEAVES: f"{LEAVES}\n        self.blocks.append(block)"}, {LEAVES: "pass"}),
        "changes-its-input": {ROW: f"{ROW}\n        table.clear()"},
    },
)


def _random_row(seed: int) -> str:
    """Takes, hits and returns; the tables hold what the right order gives."""
    rng, lines = random.Random(seed), [f"f = FreeList({list(range(1, 14))})"]
    right, held = EVICTION.answers["FreeList"](list(range(1, 14))), []
    for _ in range(80):
        what = rng.random()
        if what < 0.45 and len(right.blocks) > 3:
            held.append([right.take() for _ in range(rng.randint(1, 3))])
            lines += ["f.take()"] * len(held[-1])
        elif what < 0.6 and len(right.blocks) > 3:
            held.append([rng.choice(right.blocks)])
            right.hit(held[-1][0])
            lines.append(f"f.hit({held[-1][0]})")
        elif held:
            table = held.pop(rng.randrange(len(held)))
            num_full = rng.randint(0, len(table))
            right.give_back(table, num_full)
            lines.append(f"f.give_back({table}, {num_full})")
    return "; ".join([*lines, *["f.take()"] * len(right.blocks)])


@EVICTION.grader
def grade_free_list(free_list: type) -> None:
    EVICTION.judge_scripts("FreeList", free_list, [*FREE_LISTS, *map(_random_row, range(20))])
