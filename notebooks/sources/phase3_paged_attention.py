# %% [markdown]
# # Phase 3: virtual memory for the cache, with your hands on it
#
# This notebook goes beside the [README of Phase 3](../phase3_paged_attention/README.md). A server has many users, and
# how long their answers will get is not known. Here you hand out the memory.
#
# A word has two meanings: in Phase 2 a **block** was a layer of the model; here it is 16 places of memory.
#
# Put your guess in place of the dots, where a cell says `guess = ...`, and run it. Outputs that would tell an answer are
# folded until you run their cells.
#
# **Run the folded cell below first** (click it, then Shift+Enter): it imports what the others use.

# %% tags=["plumbing"]
import math

import numpy as np
import torch

from notebooks.widgets import Guesses, allocator_piece, play_operations, show_figure, show_table
from phase2_attention_kvcache.model import SamplingParams
from phase3_paged_attention.paging import BlockManager, BlockTable, hash_block, paged_attention_loops
from phase3_paged_attention.story.memory_policies import requests_that_fit
from phase3_paged_attention.story.memory_waste_figures import draw_memory
from phase3_paged_attention.story.memory_waste_story import CONTEXT, POOL, TEN_REQUESTS, slots_allocated
from phase3_paged_attention.story.paged_attention_by_hand import (
    KEYS,
    QUERY,
    TABLE,
    VALUES,
    draw_walk,
    scatter,
    walk,
)
from phase3_paged_attention.story.word_memory import WordMemory
from phase4_scheduler.engine import LLMEngine

guesses = Guesses("phase3_paged_attention")

# %% [markdown]
# ## 1. Rows of unknown length
#
# A cache in one row has to reserve room for the longest answer there could be: 2,048 places for each request. Ten requests
# come, and hold these numbers of tokens in the end:

# %%
used = sum(TEN_REQUESTS)
print(*TEN_REQUESTS, sep=", ", end=f": {used:,} tokens in all\n")
guess = ...  # percent of the reserved places that hold nothing

guesses.reveal("waste-of-rows", guess, measured=round(100 * (1 - used / (10 * CONTEXT)), 1))

# %% [markdown]
# Cut the memory into **blocks** of 16 places, and give a request one block at a time. The real block manager does it:

# %%
show_table(
    ["places in a block", "allocated", "wasted", "wasted, %"],
    [
        [size, slots_allocated(TEN_REQUESTS, size), slots_allocated(TEN_REQUESTS, size) - used,
         100 * (1 - used / slots_allocated(TEN_REQUESTS, size))]
        for size in (1, 4, 16, 64, 256)
    ],
)  # fmt: skip
assert all(0 <= slots_allocated([n], 16) - n < 16 for n in range(1, 200))  # never a whole block

# %%
guess = ...  # requests of 300 tokens at a time, in the memory of four rows of 2,048, in blocks of 16

guesses.reveal("users-in-blocks", guess, measured=requests_that_fit([300] * 200, POOL // 16, 16))

# %% tags=["after-guess"]
show_figure(draw_memory(np.random.default_rng(0).integers(289, 305, 30)))

# %% [markdown]
# ## 2. A table says where
#
# Let a token be a word and a block hold four of them. Words stand for their keys and values, so that we can read what is
# stored. Alice and Bob come, and then write in turn.

# %%
memory = WordMemory(BlockManager(num_blocks=17, block_size=4))
alice = memory.admit("alice", "Once upon a time there lived")
bob = memory.admit("bob", "In the deep forest stood a")
for one, two in zip(["a", "king", "who"], ["house", "of", "glass"]):
    memory.say(alice, one)
    memory.say(bob, two)

guess = ...  # Alice's three blocks, such as [1, 2, 3]

guesses.reveal("blocks-of-alice", guess, measured=alice.table.block_ids)

# %% tags=["after-guess"]
print("who lies where:", memory.draw_table(alice), memory.draw_table(bob), sep="\n\n")
print("\nread through her table:", memory.read(alice))
assert memory.read(alice) == "Once upon a time there lived a king who"

# %% [markdown]
# ## 3. Poke the allocator
#
# Sixteen blocks of four tokens, and three requests that begin with the same 8 tokens. The buttons are yours:
#
# - Free B. Which of its blocks does the next request get first, and which last?
# - Fork A, then let both write a token. When is a block copied, and why only once?
# - Add requests until one is refused. Has anything changed?
# - Break it: blocks of 16, or no prefix caching. What happens to the empty places?

# %%
operations = [("add", 8, 3), ("add", 8, 2), ("add", 0, 5)]
allocator_piece(operations=operations)

# %% [markdown]
# The piece follows the rules of `block_manager.py`. To be sure, play the same on the real one (a test of the course clicks
# hundreds of random buttons and compares everything after each):

# %%
played = play_operations(
    BlockManager(num_blocks=17, block_size=4),
    [*operations, ("fork", "A"), ("append", "A"), ("append", "D"), ("free", "B")],
)
show_table(
    ["request", "tokens", "block table"],
    [[n, g.table.num_tokens, " ".join(map(str, g.table.block_ids))] for n, g in played.guests.items()],
)
print("free list:", *(block.block_id for block in played.manager.allocator))
print("tokens found in the cache:", played.manager.stats.hit_tokens)
print("blocks copied:", played.manager.stats.copied_blocks)
played.manager.check_integrity()

# %% [markdown]
# ## 4. The hash of a block
#
# How does a request find blocks that another one has filled? A full block gets a block hash: of its tokens *and of the
# hash of the block before it*.

# %%
first, second = [1, 2, 3, 4], [5, 6, 7, 8]
names = {
    "5 6 7 8 after 1 2 3 4": hash_block(hash_block(b"", first), second),
    "5 6 7 8 after 1 2 3 9": hash_block(hash_block(b"", [1, 2, 3, 9]), second),
    "5 6 7 8 at the beginning": hash_block(b"", second),
}
show_table(["block", "its name begins with"], [[what, name.hex()[:16]] for what, name in names.items()])
assert len(set(names.values())) == 3

# %% [markdown]
# Keys and values depend on everything before them. So the same tokens after another beginning are another content, and
# need another name.

# %%
manager = BlockManager(num_blocks=17, block_size=4)
prompt = list(range(12))
manager.allocate(BlockTable(), prompt, 12)
found = manager.match_prefix(BlockTable(), prompt)

guess = ...  # another request has exactly the same 12 tokens. How many are found in the cache?

guesses.reveal("same-prompt", guess, measured=4 * len(found))

# %% [markdown]
# ## 5. Softmax on the way
#
# Attention has to divide by the sum over *all* tokens, and on a walk over the blocks we know only some. The **online
# softmax** keeps the largest score so far, the sum of weights so far, and the weighted values so far.
#
# Five tokens lie in the blocks 3, 1 and 4, two in each. Everything else is NaN: if one number of it were used, the result
# would show it. The scores are 1, 3, 2, 5 and 0.

# %%
k_cache, v_cache = (scatter(rows, TABLE, block_size=2, num_blocks=6) for rows in (KEYS, VALUES))
visits = walk(QUERY, k_cache, v_cache, TABLE, len(KEYS), scale=1.0)

guess = ...  # the second score is 3, the largest so far was 1: what are the earlier sums multiplied with?

guesses.reveal("shrink", guess, measured=round(visits[1].shrink, 3))

# %% tags=["after-guess"]
show_table(
    ["block", "score", "shrink", "largest", "weight", "sum of weights", "values / sum"],
    [[str(v.physical), v.score, v.shrink, v.largest, v.weight, v.total,
      ", ".join(f"{a / v.total:.3f}" for a in v.acc)] for v in visits],
)  # fmt: skip
show_figure(draw_walk(visits))

# %% [markdown]
# The last line is exact, not an approximation. Compare with plain attention over keys in one row, and with the course's
# loops over the blocks:

# %%
scores = torch.tensor(KEYS, dtype=torch.float64) @ torch.tensor(QUERY, dtype=torch.float64)
plain = torch.softmax(scores, dim=0) @ torch.tensor(VALUES, dtype=torch.float64)
loops = paged_attention_loops([QUERY], k_cache, v_cache, TABLE, len(KEYS), scale=1.0)[0]
online = [a / visits[-1].total for a in visits[-1].acc]
print("in one row:     ", [round(x, 6) for x in plain.tolist()])
print("over the blocks:", [round(x, 6) for x in loops])
assert all(
    math.isclose(a, b, rel_tol=1e-12) and math.isclose(a, c, rel_tol=1e-12)
    for a, b, c in zip(plain, loops, online)
)

# %% [markdown]
# ## 6. What it saves
#
# Ten users with one system prompt, on the real engine with the embedded model. The first one computes the prompt. The
# others come a step later.

# %%
engine = LLMEngine.from_pretrained("tales", dtype="float32", device="cpu")
system = "You are a teller of very old tales. You speak slowly, and you never say more than you know. " * 3
questions = [
    f"Tell me about the {who}."
    for who in ["king", "queen", "fox", "wolf", "sea", "moon", "giant", "witch", "prince", "bear"]
]
params = SamplingParams(temperature=0, max_tokens=8)
outputs = [engine.generate(system + q, params)[0] for q in questions]
prompt_tokens = sum(len(o.prompt_token_ids) for o in outputs)
cached = sum(o.metrics.num_cached_tokens for o in outputs)

guess = ...  # percent of all prompt tokens that did not have to be computed

guesses.reveal(
    "ten-users",
    guess,
    measured=round(100 * cached / prompt_tokens),
    cached=cached,
    prompt_tokens=prompt_tokens,
)

# %% [markdown]
# And when all ten have gone, nothing is held for them:

# %%
engine.block_manager.check_integrity()
print(
    "blocks that some request still holds:",
    engine.block_manager.num_blocks - 1 - engine.block_manager.num_free_blocks,
)
assert engine.block_manager.usage == 0

# %% [markdown]
# ## 7. Your score, and what next

# %%
guesses.score()

# %% [markdown]
# - In section 4, hash only a block's own tokens. Which two users now read each other's keys?
# - In section 5, change `TABLE` to another order of blocks. Does the result change?
#
# Then build the parts yourself. Each exercise has a check that says what is wrong, and hints where you want them:
#
# - [3.1 Allocate and free](exercises/p3e1_allocate.ipynb)
# - [3.2 Block table lookup](exercises/p3e2_block_table.ipynb)
# - [3.3 Chain hash and prefix hit](exercises/p3e3_prefix.ipynb)
# - [3.4 Eviction order](exercises/p3e4_eviction.ipynb)
# - [3.5 Copy-on-write](exercises/p3e5_copy_on_write.ipynb)
# - [3.6 Attention over scattered blocks](exercises/p3e6_paged_attention.ipynb)
# - [Debugging lab 3: bob reads carol's words](exercises/p3d1_freed_and_read.ipynb)
#
# [Phase 4](phase4_scheduler.ipynb) decides who computes what.
