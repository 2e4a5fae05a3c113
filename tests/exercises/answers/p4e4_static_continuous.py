"""Answers to exercise 4.4."""

import heapq

from tests.exercises.changed import changed


def right_static(lengths, seats):
    done, clock = [], 0
    for i in range(0, len(lengths), seats):
        clock += max(lengths[i : i + seats])
        done += [clock] * len(lengths[i : i + seats])
    return done


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


def static_own_length(lengths, seats):
    done, clock = [], 0
    for i in range(0, len(lengths), seats):
        done += [clock + n for n in lengths[i : i + seats]]
        clock += max(lengths[i : i + seats])
    return done


def fixed(lengths, seats):
    done = []
    for i, length in enumerate(lengths):
        done.append(length + (done[i - seats] if i >= seats else 0))
    return done


def shortest(lengths, seats):
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    steps = right_continuous([lengths[i] for i in order], seats)
    return [steps[order.index(i)] for i in range(len(lengths))]


RIGHT = [(right_static, right_continuous), (right_static_by_user, right_step_by_step)]
WRONG = {
    "hands-out-early": (static_own_length, right_continuous),
    "adds-up": (changed(right_static, {"max(": "sum("}), right_continuous),
    "clock-starts-anew": (changed(right_static, {"clock += ": "clock = "}), right_continuous),
    "first-of-the-batch": (
        changed(right_static, {"max(lengths[i : i + seats])": "lengths[i]"}),
        right_continuous,
    ),
    "waits-for-the-batch": (right_static, static_own_length),
    "seat-empty-for-a-step": (
        right_static,
        changed(
            right_continuous,
            {"heapq.heappop(free) + length": "(begin := heapq.heappop(free)) + length + (begin > 0)"},
        ),
    ),
    "two-on-a-seat": (
        right_static,
        changed(right_continuous, {"heapq.heappop(free)": "max(heapq.heappop(free) - 1, 0)"}),
    ),
    "shortest-first": (right_static, shortest),
    "fixed-seats": (right_static, fixed),
}
