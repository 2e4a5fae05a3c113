# %% [markdown]
# # 1.5 How many users fit on the card?
#
# For each token of each user, the engine stores a **key** and a **value** in every layer: the KV cache. Its size per token
# depends only on the model:
#
#     bytes per token = 2 x layers x KV heads x head size x bytes per number
#
# The number of users that fit at the same time is the memory beside the weights, divided by the bytes per token and by the tokens
# per user.
#
# The model's `config.json` holds the numbers under these names:
#
# | name | meaning |
# |---|---|
# | `num_hidden_layers` | layers |
# | `num_attention_heads` | query heads |
# | `num_key_value_heads` | heads that have keys and values. **May be missing**: then as many as query heads |
# | `hidden_size` | width of the model |
# | `head_dim` | numbers in a head. **May be missing**: then width / query heads |
#
# By hand, for Llama-3 8B (32 layers, 32 query heads, 8 KV heads, width 4096, 2 bytes per number): the head size is
# 4096 / 32 = 128, and 2 x 32 x 8 x 128 x 2 = 131,072 bytes per token. A card has 24,000,000,000 bytes, and the weights take
# 16,060,522,496. So 7,939,477,504 bytes remain, and a user with 8,192 tokens takes 1,073,741,824. 7 users fit.
# The remaining memory does not hold all tokens of an eighth user.
# %%
from exercises.grading import check, hint


# %% tags=["answer"]
def kv_bytes(config: dict, bytes_per_number: int = 2) -> int:
    """Compute the bytes of KV cache per token, from the fields of a config.json."""
    # BEGIN SOLUTION
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return 2 * config["num_hidden_layers"] * kv_heads * head_dim * bytes_per_number
    # END SOLUTION


def users_that_fit(card_bytes: int, weight_bytes: int, bytes_per_token: int, tokens_per_user: int) -> int:
    """Compute the number of users that fit at the same time: a whole number, 0 if the weights do not fit."""
    # BEGIN SOLUTION
    return max(0, card_bytes - weight_bytes) // (bytes_per_token * tokens_per_user)
    # END SOLUTION


# %% tags=["check"]
check("p1e5_kv_bytes", kv_bytes, users_that_fit)
# %% [markdown]
# ## Into the engine
#
# The engine below reserved its cache without your formula. Does the size of the tensor agree with your formula? (Block 0 belongs to
# no request, but takes memory like the others.)
# %% tags=["engine"]
from exercises.judging.engine_runs import passed, same_or_stop
from phase4_scheduler.engine import LLMEngine

passed("p1e5_kv_bytes", kv_bytes, users_that_fit)
engine = LLMEngine.from_pretrained("tales", dtype="float32", device="cpu", num_blocks=40, block_size=16)
shape = engine.model.config
config = {
    "num_hidden_layers": shape.num_layers,
    "num_attention_heads": shape.num_heads,
    "hidden_size": shape.d_model,
}
cache = engine.core.runner.kv_cache.storage.data
expected = 40 * 16 * kv_bytes(config, 4)
same_or_stop(
    expected, cache.nbytes, says="the engine reserved another number of bytes than your formula gives"
)
print(f"The engine reserved {cache.nbytes:,} bytes for 640 tokens, as your formula gives.")
for card in (24, 80):
    users = users_that_fit(card * 10**9, 16_060_522_496, 131_072, 8_192)
    print(f"Llama-3 8B on a card of {card} GB: {users} users with 8,192 tokens each.")
print("These cards have exactly 24 and 80 x 10^9 bytes, without a margin.")
print("Phase 1's script uses 90% of the real memory of an L4 or A100, so it finds 5 and 57 users.")
