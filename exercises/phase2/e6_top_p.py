# %% [markdown]
# # 2.6 Top-p: cut off the tail
#
# A model gives each of its 8,192 tokens a probability. Most are tiny, but there are many of them, so now and then one of
# these absurd tokens is drawn. **Top-p** keeps the *smallest set* of the likeliest tokens that together hold at least a
# share p, and never draws any other.
#
# By hand, probabilities 0.5, 0.3, 0.15, 0.05 and p = 0.7. The first holds 0.5, not enough. With the second it is 0.8: that
# is enough, so two are kept. (With p = 0.5 the first alone would do: it holds p exactly.) **The token that crosses p belongs to the set.** At least one is always kept.
#
# What is left no longer adds up to 1, so divide by the sum: 0.625, 0.375, 0, 0.
#
# The tokens come in the order of the vocabulary, not sorted, and the result must be in that order, too: place i is
# token i. (Where two tokens are exactly equal it is open which one is cut. The grader has no such cases.)
# %%
import torch

from exercises.grading import check, hint


# %% tags=["answer"]
def keep_top_p(probs: torch.Tensor, p: float) -> torch.Tensor:
    """Cut the tail (0 < p <= 1): [vocab] -> [vocab], both add up to 1; 0 for tokens that were cut."""
    # BEGIN SOLUTION
    ordered, places = probs.sort(descending=True)
    before = ordered.cumsum(-1) - ordered  # what the likelier ones hold together
    kept = torch.zeros_like(probs)
    kept[places] = ordered.where(before < p, 0.0)
    return kept / kept.sum()
    # END SOLUTION


# %% tags=["check"]
check("p2e6_top_p", keep_top_p)
# %% [markdown]
# ## Into the engine
#
# The sampler of the small engine that you build in this course (`lab mine` runs it) cuts with your function now: half of the
# requests are sampled with top_p 0.9. With the same seed it must draw the same tokens. Yours sorts the whole vocabulary, for
# each user by itself. The course's large engine looks at a few hundred of the likeliest tokens, of all users at once, and sorts
# everything only where these do not hold p together.
# %% tags=["engine"]
from exercises.capstone.your_engine import in_your_engine

in_your_engine("p2e6_top_p", keep_top_p)
