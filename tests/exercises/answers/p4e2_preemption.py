"""Answers to exercise 4.2. The wrong ones differ from a right one in a single point."""

from collections import deque


def _make(mistake=""):
    def step(running, waiting, budget, max_num_seqs, pool):
        plan, gone, index, seats, turned = [], [], 0, max_num_seqs, 0
        while index < len(running) and (budget > 0 or mistake == "parts-of-nothing"):
            request = running[index]
            n = min(request.num_tokens - request.num_computed_tokens, budget)
            stopped = False
            while not pool.allocate(request, request.num_computed_tokens + n):
                if mistake == "none-preempted":
                    stopped = True
                    break
                place = 0 if mistake == "wrong-victim" and running[0] is not request else -1
                victim = running.pop(place)
                if place == 0:
                    index -= 1
                    plan = [part for part in plan if part[0] is not victim]
                if mistake != "blocks-not-freed" or victim is request:
                    pool.free(victim)
                if mistake != "keeps-computed":
                    victim.num_computed_tokens = 0
                if mistake == "victim-at-the-tail":
                    waiting.append(victim)
                elif mistake == "queue-out-of-order":
                    waiting.insert(len(gone), victim)
                elif mistake != "victim-lost":
                    waiting.appendleft(victim)
                gone.append(victim)
                if victim is request:
                    stopped = True
                    break
            if not stopped or mistake == "computes-without-blocks":
                plan.append((request, n))
                budget -= n
                index += 1
            elif mistake == "none-preempted":
                index += 1
        if gone and mistake != "admits-after-preemption":
            return plan
        while waiting and budget > 0 and (len(running) < seats or mistake == "seats-ignored"):
            request = waiting[0]
            n = min(request.num_tokens - request.num_computed_tokens, budget)
            must_fit = 0 if mistake == "admits-what-does-not-fit" else request.num_tokens
            room = request.num_tokens if mistake == "blocks-for-later" else request.num_computed_tokens + n
            if not pool.allocate(request, room, must_fit=must_fit):
                if mistake == "jumps-the-queue" and len(waiting) > 1:
                    waiting.rotate(-1)
                    turned += 1
                    if turned < len(waiting):
                        continue
                if mistake == "preempted-for-nothing" and running:
                    victim = running.pop()
                    pool.free(victim)
                    victim.num_computed_tokens = 0
                    waiting.append(victim)
                    plan = [part for part in plan if part[0] is not victim]
                break
            running.append(waiting.popleft())
            if mistake != "admitted-and-idle":
                plan.append((request, n))
            if mistake != "budget-per-request":
                budget -= n
        if mistake == "moves-computed-on":
            for request, n in plan:
                request.num_computed_tokens += n
        return plan

    return step


right_loop = _make()


def right_in_parts(running: list, waiting: deque, budget: int, max_num_seqs: int, pool):
    plan, crowd = [], list(running)

    def lag(request):
        return request.num_tokens - request.num_computed_tokens

    def make_room(request, tokens):
        while not pool.allocate(request, tokens):
            victim = crowd.pop()
            running.remove(victim)
            pool.free(victim)
            victim.num_computed_tokens = 0
            waiting.insert(0, victim)
            if victim is request:
                return False
        return True

    before = len(crowd)
    for request in list(crowd):
        if request not in crowd or budget == 0:
            break
        n = min(lag(request), budget)
        if make_room(request, request.num_computed_tokens + n):
            plan.append((request, n))
            budget -= n
    if len(crowd) == before:
        while budget and waiting and len(running) < max_num_seqs:
            head = waiting[0]
            n = min(head.num_tokens, budget)
            if not pool.allocate(head, n, head.num_tokens):
                return plan
            waiting.popleft()
            running.append(head)
            plan.append((head, n))
            budget -= n
    return plan


def over_a_copy(running, waiting, budget, max_num_seqs, pool):
    """Walks along a copy of `running`, and comes to those who were sent away by then."""
    plan, preempted = [], False
    for request in list(running):
        n = min(request.num_tokens - request.num_computed_tokens, budget)
        if n == 0:
            break
        while not pool.allocate(request, request.num_computed_tokens + n):
            victim = running.pop()
            pool.free(victim)
            victim.num_computed_tokens = 0
            waiting.appendleft(victim)
            preempted = True
            if victim is request:
                break
        else:
            plan.append((request, n))
            budget -= n
    return plan if preempted else plan + right_loop([], waiting, budget, max_num_seqs - len(running), pool)


RIGHT = [right_loop, right_in_parts]
WRONG = {"serves-a-victim": over_a_copy} | {
    name: _make(name)
    for name in (
        "none-preempted",
        "wrong-victim",
        "blocks-not-freed",
        "keeps-computed",
        "victim-at-the-tail",
        "queue-out-of-order",
        "victim-lost",
        "computes-without-blocks",
        "admits-after-preemption",
        "admits-what-does-not-fit",
        "budget-per-request",
        "seats-ignored",
        "admitted-and-idle",
        "jumps-the-queue",
        "preempted-for-nothing",
        "parts-of-nothing",
        "blocks-for-later",
        "moves-computed-on",
    )
}
