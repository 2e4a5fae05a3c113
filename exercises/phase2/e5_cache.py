# %% [markdown]
# # 2.5 Append to the cache
#
# The keys and values of a token never change, because a token attends only to earlier tokens. So the engine computes them once and
# stores them in the **KV cache**. Each layer has a tensor with room for many tokens, and new tokens are written behind the
# old ones.
#
# By hand, a cache with room for 8 tokens and two layers. A prompt of 3 tokens arrives at layer 0: its keys are written to
# places 0, 1, 2, and `append` returns all 3. **Then** the same 3 tokens arrive at layer 1, in *its* places 0, 1, 2.
# Next a single token arrives, first at layer 0, then at layer 1: it takes place 3 in each, and `append` returns 4 tokens.
#
# In the middle of a step layer 0 holds more tokens than layer 1.
#
# Write `append`. If there is not enough room, raise a `ValueError` and store nothing. Copy the numbers into the
# cache's own memory, as an assignment to a slice does: the caller may reuse its tensors afterwards.
# %%
import torch

from exercises.grading import check, hint


# %% tags=["answer"]
class Cache:
    """Keys and values of one sequence, in all layers."""

    def __init__(self, num_layers: int, room: int, num_kv_heads: int, head_dim: int) -> None:
        self.keys = torch.empty(num_layers, room, num_kv_heads, head_dim)
        self.values = torch.empty(num_layers, room, num_kv_heads, head_dim)
        self.lengths = [0] * num_layers  # tokens stored in each layer

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store keys and values of N new tokens of a layer, [N, num_kv_heads, head_dim]; return those of all M tokens so far."""
        # BEGIN SOLUTION
        start = self.lengths[layer]
        end = start + len(k)
        if end > self.keys.shape[1]:
            raise ValueError(f"{end} tokens do not fit: there is room for {self.keys.shape[1]}")
        self.keys[layer, start:end] = k
        self.values[layer, start:end] = v
        self.lengths[layer] = end
        return self.keys[layer, :end], self.values[layer, :end]
        # END SOLUTION


# %% tags=["check"]
check("p2e5_cache", Cache)
# %% [markdown]
# ## Into the engine
#
# In the small engine that you build in this course (`lab mine` runs it) your `Cache` serves a single request: the engine appends the
# whole prompt, then one token at a time. (Its other requests have blocks, the subject of phase 3.) Then the cell generates the same
# text without a cache, so each new token computes the whole text again.
# %% tags=["engine"]
from exercises.capstone.your_engine import TOKENS, in_your_engine
from exercises.judging.engine_runs import PROMPTS, same_or_stop, tales
from phase2_attention_kvcache.model import generate_naive

mine = in_your_engine("p2e5_cache", Cache)
model, tokenizer = tales()
prompt = tokenizer.encode(PROMPTS[0])
naive = generate_naive(model, prompt, TOKENS)
same_or_stop(mine.alone, naive.token_ids, says="without a cache the model writes other tokens")
with_cache = len(prompt) + TOKENS - 1
print(f"Tokens computed for one answer: {with_cache} with a cache, {naive.computed_tokens} without.")
