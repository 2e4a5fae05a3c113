"""Grader of exercise 3.5: blocks that several answers share, and copy before they write."""

import random
from collections.abc import Callable, Sequence

from exercises.grading import Diagnoses, Exercise, expect_equal, guard
from exercises.phase3.pool import Pool

SAYS = Diagnoses.of("p3e5_copy_on_write")

Fork = Callable[[list[int], Pool], list[int]]
MakeRoom = Callable[[list[int], int, Pool], None]


class Answers:
    """Answers to one prompt. Each writes; each reads back what it wrote, which is compared."""

    def __init__(self, fork: Fork, make_room: MakeRoom, num_blocks: int, size: int) -> None:
        self.fork_it, self.make_room = fork, make_room
        self.pool = Pool(num_blocks, size)
        self.tables: list[list[int]] = [[]]
        self.texts: list[list[int]] = [[]]
        self.story: list[str] = []

    @property
    def tried(self) -> str:
        return f"blocks of {self.pool.block_size}; tokens: " + ", ".join(self.story[-8:])

    def fork(self, who: int) -> int:
        self.story.append(f"answer {who} forks into {len(self.tables)}")
        before = list(self.tables[who])
        counts, copies = list(self.pool.ref_count), len(self.pool.copies)
        twin = guard(self.fork_it, self.tables[who], self.pool, tried=self.tried)
        if twin is self.tables[who]:
            raise SAYS.no("one-table-for-both", self.tried, "the same list object", "a list of its own")
        if len(self.pool.copies) > copies or (twin is not None and list(twin) != before):
            raise SAYS.no("fork-copies", self.tried, twin, before)
        for block in before:
            counts[block] += 1
        if self.pool.ref_count != counts:
            got, expected = ({b: count[b] for b in before} for count in (self.pool.ref_count, counts))
            raise SAYS.no("fork-not-counted", self.tried, got, expected)
        self.tables.append(twin)
        self.texts.append(list(self.texts[who]))
        return len(self.tables) - 1

    def write(self, who: int, token: int) -> None:
        """Make room for the next token, write it, and look at all answers."""
        pool, table, text = self.pool, self.tables[who], self.texts[who]
        size, place = pool.block_size, len(text)
        old = list(table)
        shared = place % size > 0 and pool.ref_count[table[place // size]] > 1
        copies = len(pool.copies)
        if self.story and self.story[-1].startswith(f"answer {who} writes "):
            first = self.story.pop().split()[3]
            self.story.append(f"answer {who} writes {first} to {place}")
        else:
            self.story.append(f"answer {who} writes {place}")
        new = guard(self.make_room, table, place, pool, tried=self.tried)
        if isinstance(new, list) and new != table == old:
            raise SAYS.no(
                "table-not-changed", self.tried, f"table {table}, and {new} came back", f"table {new}"
            )
        made = pool.copies[copies:]
        self._look_at_table(table, old, place, shared)
        self._look_at_copies(made, old, table, place, shared)
        pool.memory[table[place // size]][place % size] = token
        text.append(token)
        self._look_at_texts(who)
        self._look_at_counts(old)

    def _look_at_table(self, table: list[int], old: list[int], place: int, shared: bool) -> None:
        size = self.pool.block_size
        if len(table) <= place // size:
            raise SAYS.no("no-block-for-the-token", self.tried, table, "one block more")
        if shared and table == old:
            raise SAYS.no("writes-into-shared", self.tried, table, "a block of its own at the end")

    def _look_at_copies(self, made: list, old: list[int], table: list[int], place: int, shared: bool) -> None:
        at = place // self.pool.block_size
        if not shared:
            if made and place % self.pool.block_size == 0:
                raise SAYS.no("copies-a-full-block", self.tried, made, "no copy")
            if made:
                raise SAYS.no("copies-when-alone", self.tried, made, "no copy")
            return
        right = [(old[at], table[at])]
        if made == [(b, a) for a, b in right]:
            raise SAYS.no("copied-backwards", self.tried, made, right)
        if not made:
            raise SAYS.no("copy-missing", self.tried, "no copy", right)
        if len(made) > 1:
            raise SAYS.no("copies-too-much", self.tried, made, right)
        if made == [(table[at], table[at])]:
            raise SAYS.no("copied-onto-itself", self.tried, made, right)
        expect_equal(made, right, tried=self.tried + ": copies as (source, target)")

    def _look_at_texts(self, wrote: int) -> None:
        pool, size = self.pool, self.pool.block_size
        for who, (table, text) in enumerate(zip(self.tables, self.texts, strict=True)):
            reads = [pool.memory[table[t // size]][t % size] for t in range(len(text))]
            if reads != text:
                diagnosis = "writes-into-shared (read)" if who != wrote else "copy-missing (read)"
                raise SAYS.no(diagnosis, self.tried, reads, text, who=who)

    def _look_at_counts(self, old: Sequence[int]) -> None:
        pool = self.pool
        held = [sum(b in table for table in self.tables) for b in range(len(pool.ref_count))]
        wrong = [b for b, count in enumerate(pool.ref_count) if count != held[b]]
        if not wrong:
            return
        block = wrong[0]
        got, expected = f"block {block}: {pool.ref_count[block]}", f"block {block}: {held[block]}"
        if block in old and pool.ref_count[block] > held[block]:
            raise SAYS.no("old-count-kept", self.tried, got, expected)
        raise SAYS.no("counts-wrong", self.tried, got, expected)


def grade_copy_on_write(fork: Fork, make_room: MakeRoom) -> str:
    answers = Answers(fork, make_room, 20, 4)
    for token in range(6):  # a block and a half
        answers.write(0, token)
    answers.fork(0)
    answers.fork(0)
    for who in (1, 0, 2, 2, 2, 1, 1, 0):
        answers.write(who, 100 * who + len(answers.texts[who]))
    answers = Answers(fork, make_room, 20, 4)
    for token in range(4):  # exactly one block
        answers.write(0, token)
    answers.fork(0)
    for who in (1, 0, 0, 1):
        answers.write(who, 100 * who + len(answers.texts[who]))
    for seed in range(20):
        rng = random.Random(seed)
        answers = Answers(fork, make_room, 130, rng.choice([1, 2, 4]))
        for step in range(60):
            if rng.random() < 0.15 and len(answers.tables) < 6:
                answers.fork(rng.randrange(len(answers.tables)))
            else:
                answers.write(rng.randrange(len(answers.tables)), step)
    return "Three answers by hand; then 20 times up to six of them that fork and write at random, each read back."


EXERCISES = [
    Exercise("p3e5_copy_on_write", ("fork", "make_room"), grade_copy_on_write),
]
