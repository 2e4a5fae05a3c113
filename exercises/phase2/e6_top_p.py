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
    """Cut the tail.

    Args:
        probs: [vocab], adds up to 1.
        p: above 0, up to 1. With 1 nothing is cut.

    Returns:
        [vocab], adds up to 1; 0 for tokens that were cut.
    """
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
# The engine's sampler cuts with your function now. With the same seed it must draw the same tokens. Yours sorts the whole
# vocabulary, for each user by itself. The course looks at a few hundred of the likeliest tokens, of all users at once, and
# sorts everything only where these do not hold p together.
# %% tags=["engine"]
from unittest.mock import patch

from exercises.grading import same_or_stop
from exercises.judging.side_by_side import passed, speed, timed
from phase2_attention_kvcache.model import SamplingParams, truncation
from phase4_scheduler.engine import LLMEngine

passed("p2e6_top_p", keep_top_p)
engine = LLMEngine.from_pretrained("tales", dtype="float32", device="cpu", max_num_seqs=4, max_model_len=128)
prompts = ["Once upon a time there was", "The king had three", "In the middle of the wood"]
params = [SamplingParams(temperature=0.9, top_p=p, seed=7, max_tokens=30) for p in (0.5, 0.8, 0.95)]


def your_rows(probs, top_p):
    return torch.stack([keep_top_p(row, float(p)) for row, p in zip(probs, top_p[:, 0])])


course, course_seconds = timed(lambda: engine.generate(prompts, params))
with patch.object(truncation, "apply_top_p", your_rows):
    mine, my_seconds = timed(lambda: engine.generate(prompts, params))
for ours, theirs, p in zip(mine, course, params):
    same_or_stop(ours.token_ids, theirs.token_ids, says=f"with top_p {p.top_p} other tokens were drawn")
    print(f"top_p {p.top_p}: {ours.prompt}{ours.text}")
print(speed(my_seconds, course_seconds))
