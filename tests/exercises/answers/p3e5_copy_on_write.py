"""Answers to exercise 3.5 that learners give."""


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


COUNTED = "pool.ref_count[block] += 1"
NEW_BLOCK = "table.append(pool.take())"
COPY = """new = pool.take()
        pool.copy(table[at], new)
        pool.ref_count[table[at]] -= 1
        table[at] = new"""
RIGHT = [(fork_with_index, make_room_from_the_end), {"make_room": make_room_early_return}]
WRONG = {
    "one-table-for-both": {"list(table)": "table"},
    "fork-not-counted": {COUNTED: "pass"},
    "fork-copies": {
        f"    for block in table:\n        {COUNTED}\n    return list(table)": """
    twin = [pool.take() for _ in table]
    for source, target in zip(table, twin):
        pool.copy(source, target)
    return twin"""
    },
    "writes-into-shared": {"pool.ref_count[table[at]] > 1": "False"},
    "copy-missing": {"        pool.copy(table[at], new)\n": ""},
    "old-count-kept": {"        pool.ref_count[table[at]] -= 1\n": ""},
    "copied-backwards": {"copy(table[at], new)": "copy(new, table[at])"},
    # The table points to the new block before the copy is made.
    "copied-onto-itself": {
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
    # Looks at the last block, also when it is full.
    "copies-a-full-block": {
        "    if at == len(table):": """    if table and at == len(table) and pool.ref_count[table[-1]] > 1:
        make_room(table, num_tokens - 1, pool)
    if at == len(table):"""
    },
    "no-block-for-the-token": [
        {NEW_BLOCK: "pass"},
        # A new block only when the last one is over-full.
        {
            "if at == len(table):": "if not table or num_tokens > len(table) * pool.block_size:",
            "elif pool": "elif num_tokens % pool.block_size and pool",
        },
    ],
    "counts-wrong": [
        {NEW_BLOCK: f"{NEW_BLOCK}\n        pool.ref_count[table[at]] += 1"},  # `take` has counted it already
        {"ref_count[table[at]] -= 1": "ref_count[table[at]] = 0"},
    ],
    # Returns a table in place of changing the one that it got.
    "table-not-changed": {
        "    at = num_tokens": "    table = list(table)\n    at = num_tokens",
        "        table[at] = new": "        table[at] = new\n    return table",
    },
}
