"""Answers to exercise 3.5 that learners give."""

from tests.exercises.changed import changed


def fork(table, pool):
    for block in table:
        pool.ref_count[block] += 1
    return list(table)


def make_room(table, num_tokens, pool):
    at = num_tokens // pool.block_size
    if at == len(table):
        table.append(pool.take())
    elif pool.ref_count[table[at]] > 1:
        new = pool.take()
        pool.copy(table[at], new)
        pool.ref_count[table[at]] -= 1
        table[at] = new


# Right, written differently.
def fork_with_index(table, pool):
    twin = table[:]
    for i in range(len(twin)):
        pool.ref_count[twin[i]] = pool.ref_count[twin[i]] + 1
    return twin


def make_room_from_the_end(table, num_tokens, pool):
    if num_tokens % pool.block_size == 0:
        table += [pool.take()]
        return
    last = table.pop()
    if pool.ref_count[last] != 1:
        mine = pool.take()
        pool.copy(source=last, target=mine)
        pool.ref_count[last] -= 1
        last = mine
    table.append(last)


def make_room_early_return(table, num_tokens, pool):
    index, offset = divmod(num_tokens, pool.block_size)
    if offset and pool.ref_count[table[index]] == 1:
        return
    new = pool.take()
    if offset == 0:
        table.append(new)
    else:
        old, table[index] = table[index], new
        pool.copy(old, new)
        pool.ref_count[old] -= 1


def fork_that_copies(table, pool):
    twin = []
    for block in table:
        new = pool.take()
        pool.copy(block, new)
        twin.append(new)
    return twin


def copies_all(table, num_tokens, pool):
    at = num_tokens // pool.block_size
    if at == len(table):
        table.append(pool.take())
    elif pool.ref_count[table[at]] > 1:
        for i, block in enumerate(list(table)):
            new = pool.take()
            pool.copy(block, new)
            pool.ref_count[block] -= 1
            table[i] = new


def copies_the_last_block(table, num_tokens, pool):
    """Looks at the last block, also when it is full."""
    if table and pool.ref_count[table[-1]] > 1:
        new = pool.take()
        pool.copy(table[-1], new)
        pool.ref_count[table[-1]] -= 1
        table[-1] = new
    if num_tokens % pool.block_size == 0:
        table.append(pool.take())


def block_too_late(table, num_tokens, pool):
    """A new block only when the last one is over-full."""
    if not table or num_tokens > len(table) * pool.block_size:
        table.append(pool.take())
    elif num_tokens % pool.block_size:
        make_room(table, num_tokens, pool)


def forgets_the_old_block(table, num_tokens, pool):
    """The table points to the new block before the copy is made."""
    if num_tokens % pool.block_size == 0:
        table.append(pool.take())
    elif pool.ref_count[table[-1]] > 1:
        pool.ref_count[table[-1]] -= 1
        table[-1] = pool.take()
        pool.copy(table[-1], table[-1])


def counts_once_more(table, num_tokens, pool):
    """Counts the block that `take` has counted already."""
    at = num_tokens // pool.block_size
    if at == len(table):
        table.append(pool.take())
        pool.ref_count[table[at]] += 1
    else:
        make_room(table, num_tokens, pool)


def new_table(table, num_tokens, pool):
    """Returns a table in place of changing the one that it got."""
    twin = list(table)
    make_room(twin, num_tokens, pool)
    return twin


RIGHT = [(fork_with_index, make_room_from_the_end), (fork, make_room_early_return)]
WRONG = {
    "one-table-for-both": (changed(fork, {"list(table)": "table"}), make_room),
    "fork-not-counted": (lambda table, pool: list(table), make_room),
    "fork-copies": (fork_that_copies, make_room),
    "writes-into-shared": (fork, changed(make_room, {"pool.ref_count[table[at]] > 1": "False"})),
    "copy-missing": (fork, changed(make_room, {"        pool.copy(table[at], new)\n": ""})),
    "old-count-kept": (fork, changed(make_room, {"        pool.ref_count[table[at]] -= 1\n": ""})),
    "copied-backwards": (fork, changed(make_room, {"copy(table[at], new)": "copy(new, table[at])"})),
    "copied-onto-itself": (fork, forgets_the_old_block),
    "copies-too-much": (fork, copies_all),
    "copies-when-alone": (fork, changed(make_room, {"elif pool.ref_count[table[at]] > 1:": "else:"})),
    "copies-a-full-block": (fork, copies_the_last_block),
    "no-block-for-the-token": [
        (fork, changed(make_room, {"table.append(pool.take())": "pass"})),
        (fork, block_too_late),
    ],
    "counts-wrong": [
        (fork, counts_once_more),
        (fork, changed(make_room, {"ref_count[table[at]] -= 1": "ref_count[table[at]] = 0"})),
    ],
    "table-not-changed": (fork, new_table),
}
