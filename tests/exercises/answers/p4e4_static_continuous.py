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


RIGHT = [{"continuous": right_continuous}, (right_static_by_user, right_step_by_step)]
WRONG = {"shortest-first": {"continuous": shortest}}
