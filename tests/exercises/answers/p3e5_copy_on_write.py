RIGHT = {
    "list(table)": "table[:]",
    "at == len(table)": "num_tokens % pool.block_size == 0",
    "table[at]": "table[-1]",
    "pool.copy(table[-1], new)": "pool.copy(source=table[-1], target=new)",
    "table.append(pool.take())": "table += [pool.take()]",
    "table[-1] = new": "table[-1] = new\n    return table",
}
COPIES = "[(pool.copy(block, new := pool.take()), new)[1] for block in table]"
WRONG = {
    "one-table-for-both": {"list(table)": "table", "pool.ref_count[block] += 1": "pass"},
    "fork-copies": {"list(table)": COPIES, "pool.ref_count[block] += 1": "pass"},
}
