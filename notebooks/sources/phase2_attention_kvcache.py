# %% [markdown]
# # Phase 2: the model, and what it remembers, with your hands on it
#
# This notebook goes beside the [README of Phase 2](../phase2_attention_kvcache/README.md). It runs the phase's own
# modules on the embedded model `tales`: a small GPT-2 that writes stories.
#
# Put your guess in place of the dots, where a cell says `guess = ...`, and run it. Outputs that would tell an answer are
# folded until you run their cells.
#
# **Run the folded cell below first** (click it, then Shift+Enter): it imports what the others use.

# %% tags=["plumbing"]
import torch

from labkit.models import find_model
from notebooks.widgets import (
    Decoding,
    FewerBits,
    Guesses,
    attention_piece,
    bits_piece,
    decoding_piece,
    show_figure,
    show_lines,
    show_table,
)
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase1_tokens_embeddings.weights import CARDS
from phase2_attention_kvcache.model import (
    GPT2_124M,
    ContiguousKVCache,
    NoCache,
    SamplingParams,
    Transformer,
    generate_cached,
    generate_naive,
)
from phase2_attention_kvcache.model.attention import attention_weights
from phase2_attention_kvcache.model.quantized_linear import QuantizedWeight
from phase2_attention_kvcache.model.roofline import Ceilings, work_of_step
from phase2_attention_kvcache.model.truncation import to_probs
from phase2_attention_kvcache.story.attention_by_hand import (
    EMBEDDINGS,
    W_K,
    W_Q,
    W_V,
    WORDS,
    attention_by_hand,
    percent,
    side_by_side,
)
from phase2_attention_kvcache.story.inside_the_tower import draw_layers, guesses_by_layer
from phase2_attention_kvcache.story.positions_story import compare_kinds, draw_scores
from phase2_attention_kvcache.story.quantization_story import TEXTS, tokens_of

guesses = Guesses("phase2_attention_kvcache")
model_folder = find_model("tales")
tok = BPETokenizer.from_file(model_folder / "tokenizer.json")
model = Transformer.from_pretrained(model_folder)
f"{model.config.num_layers} layers of {model.config.num_heads} heads, {model.config.num_parameters / 1e6:.1f} million parameters"

# %% [markdown]
# ## 1. Three words by hand
#
# Each token makes three vectors: a **query** (what am I looking for?), a **key** (what do I offer?) and a **value** (what
# do I hand over?). Query times key gives a **score**. Here are the scores of three words, the row looks at the column:

# %%
s = attention_by_hand(EMBEDDINGS, W_Q, W_K, W_V)
print(side_by_side([("Q", s.q), ("K", s.k), ("V", s.v), ("scores = Q K^T", s.raw)], WORDS))

# %% [markdown]
# A word may not look at what comes later: the **causal mask**. Scores are divided by the square root of how many numbers
# a vector has (3), so by 1.73. Then **softmax** makes weights of them: `e` to the power of each score, divided by the sum.

# %%
guess = ...  # the weights of "dogs" in percent, from scores 5, 5 and 4, such as [40, 40, 20]

guesses.reveal("weights-of-dogs", guess, measured=percent(s.weights[2]))

# %% tags=["after-guess"]
print(side_by_side([("weights", s.weights), ("output = weights x V", s.output)], WORDS, 2))

# %% [markdown]
# "I" comes first and sees only itself, so all of its weight stays there. "dogs" goes on as a mixture of three values. That
# is all that attention does: it moves information between tokens.
#
# ## 2. Hover the attention of a real model
#
# The model hands queries, keys and values to an object, `kv.attend`, and takes what comes back. It does not know what
# stands there. So put an object of your own there, one that writes down the attention weights:


# %%
class Looking(NoCache):
    def __init__(self):
        super().__init__()
        self.weights = []  # of each layer [heads, N, N]

    def attend(self, layer, q, k, v):
        self.weights.append(attention_weights(q, k))
        return super().attend(layer, q, k, v)


def look(text):
    ids = torch.tensor(tok.encode(text))
    looking = Looking()
    with torch.inference_mode():
        model(ids, torch.arange(len(ids)), looking)
    return looking.weights, [tok.decode([i]) for i in ids.tolist()]


weights, tokens = look("The king took off his crown, because the king was tired of it.")

# %%
on_first = torch.stack([w[:, -1, 0] for w in weights])  # the full stop's weight on the first token

guess = ...  # of the 24 heads, how many put more than half of the last token's weight on "The", the first?

guesses.reveal(
    "look-at-first",
    guess,
    measured=int((on_first > 0.5).sum()),
    tokens=len(tokens),
    even=1 / len(tokens),
    most=on_first.max(),
)

# %% [markdown]
# Choose a layer and a head. Then point at a word, or at a square, or step into the map with the Tab key and go on with the
# arrow keys. The row looks at the column.
#
# - Which words does the second "king" look at? Try all the heads of the first layer.
# - Find a head that looks at the token before, and one that looks at the token itself.
# - Why is half of the map striped?

# %%
attention_piece(weights, tokens, layer=0, head=0)

# %% [markdown]
# The mask has a consequence that this whole course lives on. What is computed for a token never changes, whatever comes
# after it. Another ending, the same weights before:

# %%
other, _ = look("The king took off his crown, because the dragon said so.")
same = tokens.index(" because") + 1
difference = max(float((a[:, :same, :same] - b[:, :same, :same]).abs().max()) for a, b in zip(weights, other))
print(f"largest difference in the first {same} tokens, all layers: {difference:.6f}")
assert difference < 1e-5

# %% [markdown]
# ## 3. Where am I?
#
# Attention compares contents, wherever they stand. The order has to be put in. Two ways add a vector for each position.
# **Rotary** positions turn queries and keys by an angle that grows with the position, so that only the distance of two
# tokens counts:

# %%
show_figure(draw_scores(compare_kinds(seed=0, num_places=40)))

# %% [markdown]
# ## 4. How an answer forms
#
# The vector of the last token passes six blocks. What would the model answer, if it had fewer layers?

# %%
prompt = "Once upon a time there was a king who had three"
ids = torch.tensor(tok.encode(prompt))
layers = guesses_by_layer(model, ids)
best = layers[-1].topk(5).indices
names = [repr(tok.decode([i])) for i in best.tolist()]
leads = [bool((layers[i:].argmax(-1) == best[0]).all()) for i in range(1, len(layers))]

guess = ...  # the layer, 1 to 6, from which on the final favourite is ahead of all 8,192 tokens

guesses.reveal("leading-layer", guess, measured=leads.index(True) + 1, favourite=names[0])

# %% tags=["after-guess"]
show_figure(draw_layers(layers[1:, best], names, prompt))

# %% [markdown]
# ## 5. From scores to a word
#
# The sampler chooses. **Temperature** makes differences larger or smaller; **top-p** keeps the smallest set of tokens that
# holds a share p of the probability.

# %%
prompt = "Once upon a time there was a little girl who"
ids = torch.tensor(tok.encode(prompt))
with torch.inference_mode():
    logits = model.logits(model(ids, torch.arange(len(ids)), NoCache())[-1:])
kept = {p: int((to_probs(logits, [SamplingParams(top_p=p)]) > 0).sum()) for p in (0.5, 0.8, 0.9, 0.95, 0.99)}

guess = ...  # tokens that top-p 0.9 keeps, of 8,192, after "there was a little girl who"

guesses.reveal("top-p", guess, measured=kept[0.9], half=kept[0.5], most=kept[0.99])

# %% tags=["after-guess"]
settings = {
    "as it is": SamplingParams(),
    "temperature 0.5": SamplingParams(temperature=0.5),
    "temperature 1.5": SamplingParams(temperature=1.5),
    "top-k 5": SamplingParams(top_k=5),
    "top-p 0.9": SamplingParams(top_p=0.9),
}
probs = to_probs(logits.expand(len(settings), -1), list(settings.values()))
likeliest = probs[0].topk(5).indices.tolist()
show_table(
    ["setting", "tokens left", *(repr(tok.decode([i])) for i in likeliest)],
    [
        [name, int((p > 0).sum()), *(f"{100 * p[i]:.0f}%" for i in likeliest)]
        for name, p in zip(settings, probs)
    ],
)
assert torch.allclose(probs.sum(-1), torch.ones(len(settings)))

# %% [markdown]
# ## 6. Compute each token once
#
# To write a word, the model looks at all words before it. The **naive** way computes all of them again for every new
# word. But keys and values never change (section 2). Keep them: that is the **KV cache**.
#
# How much work does it save? 100 new tokens after a prompt of 2:

# %%
start = tok.encode("Once upon")
naive, cached = generate_naive(model, start, 100), generate_cached(model, start, 100)
assert naive.token_ids == cached.token_ids  # the same story, to the last token

guess = ...  # tokens that go through the model, the naive way

guesses.reveal("work-naive", guess, measured=naive.computed_tokens)

# %%
guess = ...  # and with a cache

guesses.reveal("work-cached", guess, measured=cached.computed_tokens)

# %% [markdown]
# Step through it. Both ways write the same text. Orange is computed in this step, blue lies in the cache.
#
# - In which step does the cache compute more than one token, and why is that step called **prefill**?
# - Look at a key in the middle of the text. How often has the naive way computed it?
# - When does the room double? How much of it is empty right after that?

# %%
run = Decoding.of(model, tok, "Once upon a time there was", new_tokens=16)
decoding_piece(run)

# %% tags=["after-guess"]
lengths = list(range(1, 101))
show_lines(
    f"{naive.computed_tokens:,} tokens computed, or {cached.computed_tokens}",
    "Work for each length of the answer, after a prompt of 2",
    ("new tokens", lengths),
    "tokens computed in all",
    {"with a cache": [2 + n - 1 for n in lengths], "naive": [sum(range(2, 2 + n)) for n in lengths]},
)

# %% [markdown]
# Fifty times less work is not fifty times the speed: a step that computes many tokens at once costs less for each, because
# it reads the weights once for all of them. How much less? `kv_cache_lab.py` measures it on your machine.
#
# ## 7. The price is memory
#
# Every token keeps a key and a value in each layer. Count it in a real cache, at the size of GPT-2: 12 layers, 12 heads of
# 64 numbers, 2 bytes a number.

# %%
cache = ContiguousKVCache(GPT2_124M)
token = torch.zeros(1, GPT2_124M.num_kv_heads, GPT2_124M.head_dim, dtype=torch.float16)
used, reserved = [], []
for _ in range(300):
    for layer in range(GPT2_124M.num_layers):
        cache.append(layer, token, token)
    used.append(cache.bytes_used)
    reserved.append(cache.bytes_reserved)

guess = ...  # bytes that one token leaves in the cache of GPT-2

guesses.reveal("kv-bytes", guess, measured=used[0])

# %% tags=["after-guess"]
show_lines(
    f"Room for {reserved[-1] // used[0]} tokens is taken, {len(used)} are there",
    "One sequence in the cache of Phase 2, GPT-2's size; room doubles when it is used up",
    ("tokens of text", range(1, len(used) + 1)),
    "MB",
    {"in use": [b / 1e6 for b in used], "reserved": [b / 1e6 for b in reserved]},
)
assert all(u <= r < 2 * u + 64 * used[0] for u, r in zip(used, reserved))

# %% [markdown]
# Up to half of the room is empty. With many users that waste decides how many fit: that is where
# [Phase 3](phase3_paged_attention.ipynb) begins.
#
# ## 8. What limits a step?
#
# A step fetches bytes and does operations. Operations divided by bytes is its **intensity**. A card has a top speed for
# each, and the **ridge** is the intensity at which both take equally long. Take an A100, by its data sheet: 2,039 GB and
# 312,000 billion operations a second. (What a program really gets is less. `roofline_lab.py` measures both on your machine.)

# %%
a100 = Ceilings(CARDS["a100-80"].bandwidth_gb_s * 1e9, CARDS["a100-80"].tensor_tflops * 1e12)
steps = {n: work_of_step(GPT2_124M, n, 0, 2) for n in range(1, 1025)}

guess = ...  # operations a byte of a decode step: one token, each weight of 2 bytes used once

guesses.reveal("intensity", guess, measured=round(steps[1].intensity, 1), ridge=a100.ridge)

# %% tags=["after-guess"]
most = max(n for n, work in steps.items() if work.intensity <= a100.ridge)  # tokens, while bytes decide
show_lines(
    f"Up to about {most} tokens in a step, more tokens are nearly free",
    f"GPT-2 in 16 bit; an A100 by its data sheet, ridge: {a100.ridge:.0f} operations a byte",
    ("tokens computed in the step", list(steps)),
    "at least, microseconds",
    {"": [1e6 * a100.seconds(work) for work in steps.values()]},
    log="xy",
    ticks=[4**i for i in range(6)],
    mark=most,
)

# %% [markdown]
# Right of the dashed line arithmetic is the limit: that is prefill. Left of it the step waits for memory: that is decode,
# and there is room for many more users in the same step. [Phase 4](phase4_scheduler.ipynb) fills it.
#
# Why does the line stand at more tokens than the ridge has operations a byte? A step reads the table of all words once,
# and uses it for the last token only.
#
# ## 9. Fewer bits a weight
#
# While memory is the limit, fewer bytes mean faster tokens. So store each weight as a short whole number, a **code**, and let a
# **group** of weights share a **scale** and a **zero point**:
#
#     weight = (code - zero point) x scale
#
# 4 bits have 16 codes. The zero point is the code that stands for 0.0. Here a scale takes 16 bits, and a zero point 8.

# %%
matrix = QuantizedWeight.of(model.blocks[0].mlp.up.weight, "int4")
bits_a_weight = 8 * matrix.nbytes / (matrix.shape[0] * matrix.shape[1])

guess = ...  # bits a weight in all, with codes of 4 bits and groups of 32

guesses.reveal("bits-a-weight", guess, measured=bits_a_weight)

# %% [markdown]
# What does the model forget? Round all matrices of `tales`, and let it go on with a sentence. What it says otherwise than in
# full is marked. A sentence can change at a hair's breadth, so look at **bits per byte** too: what the model needs on average to write
# down a byte of a text. (8 without a model, fewer the better it knows the text.) This takes some ten seconds: 21 models
# are made and measured.
#
# - Drag the bits down. Where does the sentence change first? Where does it fall apart?
# - 3 bits: what do smaller groups win, and what do they cost in bits a weight? Which is better, 3 bits in groups of 32 or 4
#   bits with a scale for a whole row?
# - 8 bits: may the sentence differ although nothing is forgotten? Why is one sentence a bad measure?

# %%
text, num_bytes = tokens_of(TEXTS / "valid.txt", tok, 2_000)
fewer = FewerBits.of(model, tok, "The king had three", text, num_bytes)
assert [s.bits_a_weight for s in fewer.settings if (s.bits, s.group) == (4, 32)] == [bits_a_weight]
bits_piece(fewer)

# %% [markdown]
# ## 10. Your score, and what next

# %%
guesses.score()

# %% [markdown]
# - In section 2, give `look` a sentence with two people in it. Which head knows whom "he" means? Does it know in another
#   sentence, too?
# - In section 6, let the model write 40 tokens. How often does the room double?
# - In section 7, work out the bytes a token of Llama-3 8B by hand: 32 layers, 8 KV heads of 128. Then look at Phase 1.
#
# Then build the parts yourself. Each exercise has a check that says what is wrong, and hints where you want them:
#
# - [2.0 Tensors: one product and one softmax](exercises/p2e0_tensors.ipynb)
# - [2.1 The causal mask](exercises/p2e1_causal_mask.ipynb)
# - [2.2 One head of attention](exercises/p2e2_one_head.ipynb)
# - [2.3 Grouped-query attention](exercises/p2e3_grouped.ipynb)
# - [2.4 Rotary positions](exercises/p2e4_rotary.ipynb)
# - [2.5 Append to the cache](exercises/p2e5_cache.ipynb)
# - [2.6 Top-p: cut off the tail](exercises/p2e6_top_p.ipynb)
# - [2.7 How long until the first token?](exercises/p2e7_ttft.ipynb)
# - [2.8 Two weights in a byte](exercises/p2e8_int4_groups.ipynb)
# - [2.9 The outlier that ruins absmax](exercises/p2e9_outlier.ipynb)
# - [2.10 A model that nobody told you about](exercises/p2e10_family.ipynb)
# - [Debugging lab 2: a story with a gap](exercises/p2d1_words_after_a_gap.ipynb)
#
# [Phase 3](phase3_paged_attention.ipynb) makes room for many users.
