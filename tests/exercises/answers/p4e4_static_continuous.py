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


RIGHT = [(right_static_by_user, right_continuous)]
