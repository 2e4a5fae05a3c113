# %% [markdown]
# # 4.10 A router that finds the prefix
#
# Four replicas serve one model, each with a prefix cache of its own. A user comes back with all that was said before, and a new
# question. One replica has that beginning in its cache, the others would compute it again. So send the user there. But do not
# overdo it: if everybody begins with the same document, one replica drowns and three are idle.
#
# A **router** chooses the replica for each request. It sees two things:
#
# - `blocks`: the names of the prompt's blocks. Equal names, equal text.
# - `loads`: how many requests each replica has in flight.
#
# What the caches hold it does not see. It remembers which blocks it gave to which replica. A replica **knows** the blocks from the beginning of the
# prompt on, up to the first one that it was never given. (What lies behind that is of no use: keys and values depend on all
# tokens before.) The rule:
#
# 1. The best replica is the one that knows most blocks. Among equals: the lower load, then the lower number.
# 2. If it knows less than half of the blocks, or if it has more than `slack` requests above the least loaded replica: take the
#    least loaded one instead (among equals the lowest number).
# 3. The chosen replica is given all blocks of the request. Write that down.
#
# By hand, with three replicas and `slack` 4:
#
#     choose([1, 2, 3], [1, 0, 0])       1    no replica knows a block: the least loaded
#     choose([1, 2, 3, 4], [0, 3, 0])    1    knows three of four, and 3 more are not too many
#     choose([1, 8, 9], [0, 3, 0])       0    replica 1 knows one of three: too little
#     choose([1, 2, 3, 4], [0, 5, 1])    0    5 more than replica 0: it drowns
#     choose([1, 2, 3, 4], [2, 5, 0])    0    knows all four now, too, and has less to do

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
        """The replica, from 0 on, for a prompt of these blocks."""
        # BEGIN SOLUTION
        replicas = range(len(loads))
        known = [self._known(blocks, replica) for replica in replicas]
        chosen = min(replicas, key=lambda replica: (-known[replica], loads[replica]))
        drowns = loads[chosen] > min(loads) + self.slack
        if known[chosen] * 2 < len(blocks) or drowns:
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
# A fleet of four in virtual time: Llama-3 8B on L4 cards, the course's scheduler in each. The traffic has the shape of a published trace
# (Mooncake's): all prompts begin with the same block, talks come back. And for a while every second new user
# asks about the same document. Your router is in front, once as you wrote it and once without its brake (`slack` of a million).

# %% tags=["engine"]
from exercises.phase4.fleet_runs import route_the_fleet

route_the_fleet(Router)
