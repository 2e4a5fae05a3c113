"""Answers to exercise 4.2. The wrong ones differ from the solution in a single point."""

from collections import deque


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


EACH_RUNNING = "while index < len(running) and budget > 0:"
VICTIM = "victim = running.pop()"
QUEUED = "waiting.appendleft(victim)"
ADMITTED = "plan.append((request, n))\n        budget -= n"
NO_ROOM = "            break\n        running.append"
RIGHT = [right_in_parts]
WRONG = {
    # Walks along a copy of `running`, and comes to those who were sent away by then.
    "serves-a-victim": {
        f"{EACH_RUNNING}\n        request = running[index]": """for request in list(running):
        if budget == 0:
            break"""
    },
    "none-preempted": {VICTIM: "index += 1\n                break"},
    "wrong-victim": {
        VICTIM: """first = running[0] is not request
                victim = running.pop(0 if first else -1)
                plan = [part for part in plan if part[0] is not victim]
                index -= first"""
    },
    "blocks-not-freed": {"pool.free(victim)": "victim is request and pool.free(victim)"},
    "keeps-computed": {"victim.num_computed_tokens = 0": "pass"},
    "victim-at-the-tail": {QUEUED: "waiting.append(victim)"},
    "queue-out-of-order": {QUEUED: "waiting.insert(preempted, victim)", "preempted = True": "preempted += 1"},
    "victim-lost": {QUEUED: "pass"},
    "computes-without-blocks": {"if got_blocks:": "if True:"},
    "admits-after-preemption": {"not preempted and ": ""},
    "admits-what-does-not-fit": {", must_fit=request.num_tokens": ""},
    "budget-per-request": {ADMITTED: "plan.append((request, n))"},
    "seats-ignored": {" and len(running) < max_num_seqs": ""},
    "admitted-and-idle": {ADMITTED: "budget -= n"},
    "jumps-the-queue": {
        "index = [], False, 0": "index, skipped = [], False, 0, 0",
        NO_ROOM: f"""            skipped += 1
            if skipped < len(waiting):
                waiting.rotate(-1)
                continue
{NO_ROOM}""",
    },
    "preempted-for-nothing": {
        NO_ROOM: f"""            if running:
                victim = running.pop()
                pool.free(victim)
                victim.num_computed_tokens = 0
                waiting.append(victim)
                plan = [part for part in plan if part[0] is not victim]
{NO_ROOM}"""
    },
    "parts-of-nothing": {EACH_RUNNING: "while index < len(running):"},
    "blocks-for-later": [
        {"request.num_computed_tokens + n, must_fit": "request.num_tokens, must_fit"},
        {"request.num_computed_tokens + n": "request.num_tokens"},
    ],
    "moves-computed-on": {
        "    return plan": """    for request, n in plan:
        request.num_computed_tokens += n
    return plan"""
    },
}
