# %% [markdown]
# # 2.5 Append to the cache
#
# Keys and values of a token never change, since a token sees only what comes before it. So the engine computes them once and
# keeps them: the **KV cache**. Each layer has a tensor with room for many tokens, and new ones are written behind the
# old ones.
#
# By hand, a cache with room for 8 tokens and two layers. A prompt of 3 tokens arrives at layer 0: its keys go to
# places 0, 1, 2, and layer 0 gets back all 3. **Then** the same 3 tokens arrive at layer 1, and go to *its* places 0, 1, 2.
# Next a single token comes, first to layer 0, then to layer 1: place 3 in each, and 4 are given back.
#
# Layers take turns. In the middle of a step layer 0 holds more tokens than layer 1.
#
# Write `append`. If there is not enough room left, raise a `ValueError` and store nothing. And copy the numbers into the
# cache's own memory, as an assignment to a slice does: the caller may use its tensors for something else afterwards.
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
        """Store the keys and values of N new tokens of a layer.

        Args:
            k, v: [N, num_kv_heads, head_dim].

        Returns:
            keys and values of all M tokens of this layer so far, [M, num_kv_heads, head_dim] each.
        """
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
# The engine serves two users at once. Each of them gets a `Cache` of yours, in place of the engine's own memory. Prompts
# come in chunks of 8 tokens, so your cache also has to append several tokens to others. Then the same words again without
# any cache, where each new token computes the whole text anew.
#
# Yours may well be the faster one. It keeps a user's keys in one piece. The course's memory is cut into blocks, which are
# copied together at each step here. What that is good for is the subject of phase 3: it wastes no room.
# %% tags=["engine"]
from exercises.grading import same_or_stop
from exercises.judging.engine_runs import tales
from exercises.judging.side_by_side import passed
from exercises.phase2.in_engine import YourMemory, beside_the_course
from phase2_attention_kvcache.model import generate_naive

passed("p2e5_cache", Cache)


def new_cache(config, room):
    return Cache(config.num_layers, room, config.num_kv_heads, config.head_dim)


texts = ("The soldier had served the king for many years, and", "The tailor took his needle and")
says = "with your cache the model writes something else"
mine = beside_the_course(texts, says, lambda config: YourMemory(config, new_cache), max_tokens=40)

model, tokenizer = tales()
prompts = [tokenizer.encode(text) for text in texts]
naive = [generate_naive(model, prompt, 40) for prompt in prompts]
same_or_stop(
    mine, [answer.token_ids for answer in naive], says="without a cache the model writes something else"
)
with_cache = sum(len(prompt) + 40 - 1 for prompt in prompts)
without = sum(answer.computed_tokens for answer in naive)
print(f"Tokens computed: {with_cache} with a cache, {without:,} without.")
