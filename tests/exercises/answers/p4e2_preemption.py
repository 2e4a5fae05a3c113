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
            n = min(lag(head), budget)
            if not pool.allocate(head, head.num_computed_tokens + n, head.num_tokens):
                return plan
            waiting.popleft()
            running.append(head)
            plan.append((head, n))
            budget -= n
    return plan


RIGHT = [right_in_parts]
