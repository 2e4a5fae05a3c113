"""Answers to exercise 4.4."""

import heapq


def right_static_by_user(lengths, seats):
    longest = [max(lengths[i : i + seats]) for i in range(0, len(lengths), seats)]
    return tuple(sum(longest[: i // seats + 1]) for i in range(len(lengths)))


def right_continuous(lengths, seats):
    free, done = [0] * seats, []
    for length in lengths:
        done.append(heapq.heappop(free) + length)
        heapq.heappush(free, done[-1])
    return done


def right_step_by_step(lengths, seats):
    waiting, running, done, step = list(enumerate(lengths)), {}, [0] * len(lengths), 0
    while waiting or running:
        while waiting and len(running) < seats:
            user, length = waiting.pop(0)
            running[user] = length
        step += 1
        for user in list(running):
            running[user] -= 1
            if running[user] == 0:
                done[user] = step
                del running[user]
    return done


def shortest(lengths, seats):
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    steps = right_continuous([lengths[i] for i in order], seats)
    return [steps[order.index(i)] for i in range(len(lengths))]


ENDS = "clock += max(batch)"
HANDED_OUT = "done += [clock] * len(batch)"
SEAT, TAKEN = "free_after.index(min(free_after))", "free_after[seat] += length"
RIGHT = [{"continuous": right_continuous}, (right_static_by_user, right_step_by_step)]
WRONG = {
    "hands-out-early": {HANDED_OUT: "done += [clock - max(batch) + n for n in batch]"},
    "adds-up": {ENDS: "clock += sum(batch)"},
    "clock-starts-anew": {ENDS: "clock = max(batch)"},
    "first-of-the-batch": {ENDS: "clock += batch[0]"},
    "waits-for-the-batch": {
        "    for length in lengths:": """    for user, length in enumerate(lengths):
        if user % seats == 0:
            free_after = [max(free_after)] * seats"""
    },
    "seat-empty-for-a-step": {TAKEN: f"{TAKEN} + (free_after[seat] > 0)"},
    "two-on-a-seat": {TAKEN: "free_after[seat] = max(free_after[seat] - 1, 0) + length"},
    "shortest-first": {"continuous": shortest},
    "fixed-seats": {SEAT: "len(done) % seats"},
}
