"""Grader of exercise 3.5: blocks that several answers share, and copy before they write."""

import random
from collections.abc import Callable
from typing import Any

from exercises.judging.judge import Exercise, When
from exercises.phase3.pool import Pool

Fork = Callable[[list[int], Pool], list[int]]
MakeRoom = Callable[[list[int], int, Pool], None]
Plan = list[int | str]  # the number of the answer that writes its next token, or "2 forks"
NO_BLOCK = "the table has no block for the token"


def written(fork: Fork, make_room: MakeRoom, block_size: int, plan: Plan) -> list[dict[str, Any]]:
    """What there is to see after each step of answers to one prompt: each writes, and each reads back what it wrote."""
    pool, tables, texts, seen = Pool(130, block_size), [[]], [[]], []
    for number, step in enumerate(plan):
        who, copies = int(str(step).split()[0]), len(pool.copies)
        table, text = tables[who], texts[who]
        if isinstance(step, str):
            given_back: Any = "the same list object" if (twin := fork(table, pool)) is table else list(twin)
            tables.append(twin)
            texts.append(list(text))
        else:
            given_back = make_room(table, len(text), pool)
            if len(table) <= len(text) // block_size:
                return [*seen, {"step": step, "gives": given_back, "table": NO_BLOCK}]
            given_back = None  # the table has changed: whatever was returned does no harm
            pool.memory[table[len(text) // block_size]][len(text) % block_size] = number
            text.append(number)
        reads = [
            [pool.memory[table[t // block_size]][t % block_size] for t in range(len(text))]
            for table, text in zip(tables, texts, strict=True)
        ]
        counts = {block: count for block, count in enumerate(pool.ref_count) if count}
        made = pool.copies[copies:]
        seen.append(
            dict(step=step, gives=given_back, table=list(table), copies=made, counts=counts, reads=reads)
        )
    return seen


def _first_step(got: list[dict], want: list[dict]) -> tuple[str, str]:
    """What differs in the first step that differs."""
    number, a, b = next((i, a, b) for i, (a, b) in enumerate(zip(got, want)) if a != b)
    fields = [field for field in b if a.get(field) != b[field]]

    def lines(seen: dict) -> str:
        what = seen["step"] if isinstance(seen["step"], str) else f"{seen['step']} writes"
        told = f"step {number + 1}, answer {what}"
        return "\n".join([told, *(f"{field}: {seen[field]}" for field in fields if field in seen)])

    return lines(a), lines(b)


def _counts_only(got: list[dict], want: list[dict], *_: Any) -> bool:
    a, b = next((a, b) for a, b in zip(got, want) if a != b)
    return a.get("counts") != b["counts"] and a | {"counts": 0} == b | {"counts": 0}


COUNTED, NEW_BLOCK = "pool.ref_count[block] += 1", "table.append(pool.take())"
COPY = """new = pool.take()
        pool.copy(table[at], new)
        pool.ref_count[table[at]] -= 1
        table[at] = new"""
EXERCISE = Exercise(
    "p3e5_copy_on_write",
    fork={
        "one-table-for-both": (
            {"list(table)": "table"},
            When(lambda got, *_: any(step["gives"] == "the same list object" for step in got)),
        ),
        "fork-not-counted": {COUNTED: "pass"},
        "fork-copies": When(lambda got, *_: any(type(s["step"]) is str and s.get("copies") for s in got)),
    },
    make_room={
        "writes-into-shared": {"pool.ref_count[table[at]] > 1": "False"},
        "copy-missing": {"        pool.copy(table[at], new)\n": ""},
        "old-count-kept": {"        pool.ref_count[table[at]] -= 1\n": ""},
        "copied-backwards": {"copy(table[at], new)": "copy(new, table[at])"},
        "copied-onto-itself": {  # the table points to the new block before the copy is made
            COPY: """pool.ref_count[table[at]] -= 1
        table[at] = pool.take()
        pool.copy(table[at], table[at])"""
        },
        "copies-too-much": {
            COPY: """for i, block in enumerate(list(table)):
            table[i] = pool.take()
            pool.copy(block, table[i])
            pool.ref_count[block] -= 1"""
        },
        "copies-when-alone": {"elif pool.ref_count[table[at]] > 1:": "else:"},
        "copies-a-full-block": {  # looks at the last block, also when it is full
            "    if at == len(table):": """    if table and at == len(table) and pool.ref_count[table[-1]] > 1:
        make_room(table, num_tokens - 1, pool)
    if at == len(table):"""
        },
        "no-block-for-the-token": (
            {NEW_BLOCK: "pass"},
            {  # a new block only when the last one is over-full
                "if at == len(table):": "if not table or num_tokens > len(table) * pool.block_size:",
                "elif pool": "elif num_tokens % pool.block_size and pool",
            },
            When(lambda got, *_: got[-1].get("table") == NO_BLOCK),
        ),
        "table-not-changed": {  # returns a table in place of changing the one that it got
            "    at = num_tokens": "    table = list(table)\n    at = num_tokens",
            "        table[at] = new": "        table[at] = new\n    return table",
        },
        "counts-wrong": (
            # `take` has counted it already.
            {NEW_BLOCK: f"{NEW_BLOCK}\n        pool.ref_count[table[at]] += 1"},
            {"ref_count[table[at]] -= 1": "ref_count[table[at]] = 0"},
            When(_counts_only),
        ),
    },
)


def _random_plan(rng: random.Random) -> Plan:
    plan, answers = [], 1
    for _ in range(60):
        forks, who = rng.random() < 0.15 and answers < 6, rng.randrange(answers)
        plan.append(f"{who} forks" if forks else who)
        answers += forks
    return plan


@EXERCISE.grader
def grade_copy_on_write(fork: Fork, make_room: MakeRoom) -> None:
    cases = [
        (4, [0] * 6 + ["0 forks", "0 forks", 1, 0, 2, 2, 2, 1, 1, 0]),  # a block and a half
        (4, [0] * 4 + ["0 forks", 1, 0, 0, 1]),  # exactly one block
    ]
    for seed in range(8):
        rng = random.Random(seed)
        cases.append((rng.choice([1, 2, 4]), _random_plan(rng)))
    EXERCISE.judge(
        ("fork", "make_room"),
        (fork, make_room),
        cases,
        play=written,
        present=_first_step,
        show=lambda size, plan: f"blocks of {size} tokens; these answers write, or fork: {plan}",
    )
