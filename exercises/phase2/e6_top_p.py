# %% [markdown]
# # 2.6 Top-p: cut off the tail
#
# A model gives each of its 8,192 tokens a probability. Most probabilities are tiny, but there are many, so sometimes an absurd
# token is sampled. **Top-p** keeps the *smallest set* of the most likely tokens that together hold at least the share p, and never
# samples another token.
#
# By hand, probabilities 0.5, 0.3, 0.15, 0.05 and p = 0.7. The first holds 0.5, which is less than p. The first two hold 0.8: that
# is enough, so two are kept. (With p = 0.5 the first alone is enough: it holds exactly p.) **The token that crosses p belongs to the
# set.** At least one token is always kept.
#
# The kept probabilities no longer add up to 1, so divide them by their sum: 0.625, 0.375, 0, 0.
#
# The tokens are in the order of the vocabulary, not sorted, and so is the result: place i belongs to token i.
# (If two tokens have equal probabilities, either may be cut. The grader has no such cases.)
# %%
import torch

from exercises.grading import check, hint


# %% tags=["answer"]
def keep_top_p(probs: torch.Tensor, p: float) -> torch.Tensor:
    """Cut the tail (0 < p <= 1): [vocab] -> [vocab], both add up to 1; cut tokens get 0."""
    # BEGIN SOLUTION
    ordered, places = probs.sort(descending=True)
    before = ordered.cumsum(-1) - ordered  # the sum of the more likely tokens
    kept = torch.zeros_like(probs)
    kept[places] = ordered.where(before < p, 0.0)
    return kept / kept.sum()
    # END SOLUTION


# %% tags=["check"]
check("p2e6_top_p", keep_top_p)
# %% [markdown]
# ## Into the engine
#
# The sampler of the small engine that you build in this course (`lab mine` runs it) now uses your function: half of the
# requests are sampled with top_p 0.9. With the same seed it must sample the same tokens. Your function sorts the whole vocabulary of
# one request. The course's large engine sorts for all requests at once. On a GPU it sorts only a few hundred of the most likely
# tokens, and the whole vocabulary if these hold less than p.
# %% tags=["engine"]
from exercises.capstone.your_engine import in_your_engine

in_your_engine("p2e6_top_p", keep_top_p)
