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


RIGHT = [(fork_with_index, make_room_from_the_end)]
