# %% [markdown]
# # 2.1 The causal mask
#
# While a model writes, later tokens do not exist yet. So a token attends to itself and to all tokens before it, and never to a later
# token. The **causal mask** is the table of allowed pairs. A row is the token that attends (the query), a column is the token that it
# attends to (the key).
#
# An engine often has fewer queries than keys. The keys of older tokens are stored; only the **last N of M**
# tokens are new and have queries. By hand, for 2 queries and 5 keys: the queries are tokens 3 and 4 (counted from 0), so
#
# | | key 0 | 1 | 2 | 3 | 4 |
# |---|---|---|---|---|---|
# | query of token 3 | yes | yes | yes | yes | no |
# | query of token 4 | yes | yes | yes | yes | yes |
#
# With a single query, as in **decode** (the engine writes the answer token by token), the table is one row of yes. With as many
# queries as keys, as for a prompt that is computed in one step, it is a triangle.
# %%
import torch

from exercises.grading import check, hint


# %% tags=["answer"]
def may_see(num_queries: int, num_keys: int) -> torch.Tensor:
    """Build the causal mask for the last N of M tokens: [N, M] of bool, True where the query may attend to the key."""
    # BEGIN SOLUTION
    positions = torch.arange(num_keys - num_queries, num_keys)
    return torch.arange(num_keys)[None, :] <= positions[:, None]
    # END SOLUTION


# %% tags=["check"]
check("p2e1_causal_mask", may_see)
# %% [markdown]
# ## Into the engine
#
# The small engine that you build in this course (`lab mine` runs it) computes at most 16 tokens in a step, so long prompts
# are computed in chunks. From the second chunk on there are more keys than queries, and in decode there is one query. All of them
# use your mask. (A mask costs little beside the attention. In decode the course omits it, because all entries would be True.)
# %% tags=["engine"]
from exercises.capstone.your_engine import in_your_engine

in_your_engine("p2e1_causal_mask", may_see)
