# %% [markdown]
# # 2.1 The causal mask
#
# When a model writes, the tokens to come do not exist yet. So a token may look at itself and at everything before it,
# never at what comes later. Which token may attend to which is a table of yes and no: the **causal mask**. Row: the token that looks
# (the query). Column: the token it looks at (the key).
#
# In an engine there are often fewer queries than keys. The keys of older tokens are remembered; only the **last N of M**
# tokens are new and ask. By hand, for 2 queries and 5 keys: the queries are tokens 3 and 4 (counted from 0), so
#
# | | key 0 | 1 | 2 | 3 | 4 |
# |---|---|---|---|---|---|
# | query of token 3 | yes | yes | yes | yes | no |
# | query of token 4 | yes | yes | yes | yes | yes |
#
# With a single query, as when the answer is written token by token (**decode**), the table is one row of yes. With as many
# queries as keys, as for a prompt that is read in one go, it is a triangle.
# %%
import torch

from exercises.grading import check, hint


# %% tags=["answer"]
def may_see(num_queries: int, num_keys: int) -> torch.Tensor:
    """The causal mask for the last N of M tokens: [N, M] of bool, True where the query may look at the key."""
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
# come in chunks. From the second chunk on there are more keys than queries, and in decode there is one query. All of that goes
# through your mask. (Making a table costs little beside the attention. The course saves it in decode, where it would only say yes.)
# %% tags=["engine"]
from exercises.capstone.your_engine import in_your_engine

in_your_engine("p2e1_causal_mask", may_see)
