# %% [markdown]
# # 4.10 A router that finds the prefix
#
# Four replicas serve one model, each with its own prefix cache. A user continues a conversation: the prompt holds the whole
# conversation and a new question. One replica has that beginning in its cache, and the others would compute it again. So send the
# request there. But if all users begin with the same document, this rule alone would overload one replica while three are idle.
#
# A **router** chooses the replica for each request. It sees two things:
#
# - `blocks`: the names of the prompt's blocks. Equal names, equal text.
# - `loads`: how many requests each replica has in flight.
#
# It does not see the content of the caches. It stores which blocks it sent to which replica. A replica **knows** the blocks from the
# beginning of the prompt up to the first block that it never received. (Later blocks are useless: their keys and values depend on all
# earlier tokens.) The rule:
#
# 1. The best replica is the one that knows most blocks. Among equals: the lower load, then the lower number.
# 2. If it knows less than half of the blocks, or if it is **overloaded**, with more than `slack` requests above the least loaded replica:
#    take the least loaded replica instead (among equals, the lowest number).
# 3. The chosen replica receives all blocks of the request. Store that.
#
# By hand, with three replicas and `slack` 4:
#
#     choose([1, 2, 3], [1, 0, 0])       1    no replica knows a block: the least loaded
#     choose([1, 2, 3, 4], [0, 3, 0])    1    knows three of four blocks, and has 3 requests more, which slack allows
#     choose([1, 8, 9], [0, 3, 0])       0    replica 1 knows one of three blocks: less than half
#     choose([1, 2, 3, 4], [0, 5, 1])    0    replica 1 has 5 requests more than replica 0: overloaded
#     choose([1, 2, 3, 4], [2, 5, 0])    0    replica 0 knows all four now, too, and has a lower load

# %%
from exercises.grading import check, hint


# %% tags=["answer"]
class Router:
    """Chooses a replica for each request."""

    def __init__(self, num_replicas: int, slack: int) -> None:
        # BEGIN SOLUTION
        self.slack = slack
        self.given = [set() for _ in range(num_replicas)]
        # END SOLUTION

    def choose(self, blocks: list[int], loads: list[int]) -> int:
        """Choose the replica, from 0 on, for a prompt of these blocks."""
        # BEGIN SOLUTION
        replicas = range(len(loads))
        known = [self._known(blocks, replica) for replica in replicas]
        chosen = min(replicas, key=lambda replica: (-known[replica], loads[replica]))
        overloaded = loads[chosen] > min(loads) + self.slack
        if known[chosen] * 2 < len(blocks) or overloaded:
            chosen = loads.index(min(loads))
        self.given[chosen].update(blocks)
        return chosen

    def _known(self, blocks: list[int], replica: int) -> int:
        for i, block in enumerate(blocks):
            if block not in self.given[replica]:
                return i
        return len(blocks)
        # END SOLUTION


# %% tags=["check"]
check("p4e10_router", Router)

# %% [markdown]
# ## Into the engine
#
# The cell simulates a fleet of four replicas: Llama-3 8B on L4 cards, with the course's scheduler. The traffic has the shape of a
# published trace (Mooncake's): all prompts begin with the same block, and users continue their conversations. For some time every second
# new user asks about the same document. Your router serves this traffic twice: with `slack` 4, and with a `slack` of a million, so that no
# replica counts as overloaded.

# %% tags=["engine"]
from exercises.phase4.fleet_runs import route_the_fleet

route_the_fleet(Router)
