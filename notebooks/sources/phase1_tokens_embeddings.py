# %% [markdown]
# # Phase 1: from text to vectors, with your hands on it
#
# This notebook goes beside the [README of Phase 1](../phase1_tokens_embeddings/README.md). It runs the phase's own
# modules, so whatever you see here you can find in their code.
#
# Where a cell says `guess = ...`, put a number in place of the dots and run it. You get 0 to 3 points, as with
# `--predict`. A guess that is wrong by a factor of ten, once, is how these numbers stick. Outputs that would tell an
# answer are folded until you run their cells.
#
# **Run the folded cell below first** (click it, then Shift+Enter): it imports what the others use.

# %% tags=["plumbing"]
import json
import struct

import torch

from labkit.models import find_model
from notebooks.widgets import Guesses, show_bars, show_figure, show_lines, show_table, tokenizer_piece
from phase1_tokens_embeddings.story.token_density import CONTENT, draw_density, measure_density, sample_text
from phase1_tokens_embeddings.story.tokenization_story import with_first_merges
from phase1_tokens_embeddings.tokens import BPETokenizer, StreamDecoder
from phase1_tokens_embeddings.tokens.bpe import count_words, learn_merges
from phase1_tokens_embeddings.weights import CARDS, SHAPES, kv_per_token, users_that_fit
from phase1_tokens_embeddings.weights.embeddings import cosine, load_embeddings
from phase1_tokens_embeddings.weights.memory_math import GB
from phase1_tokens_embeddings.weights.model_box import open_safetensors

guesses = Guesses("phase1_tokens_embeddings")
model_folder = find_model("tales")
tok = BPETokenizer.from_file(model_folder / "tokenizer.json")
f"{tok.vocab_size:,} tokens: 256 bytes, {len(tok.merges):,} merges, {len(tok.special_tokens)} special token"

# %% [markdown]
# ## 1. Learn a few merges
#
# Byte-pair encoding starts with bytes. It finds the two neighbours that occur together most often, and gives the pair
# a number of its own. Again and again. Here are the first merges of a text that you can change.

# %%
text = "the cat sat on the mat and the cat saw the rat that ate the hat"
shown = [bytes([b]) for b in range(256)]
for number, (left, right) in enumerate(learn_merges(count_words([text]), num_merges=8)):
    shown.append(shown[left] + shown[right])
    print(
        f"merge {number}: {shown[left].decode()!r:>6} + {shown[right].decode()!r:<6} -> {shown[-1].decode()!r}"
    )

# %% [markdown]
# The order of the merges *is* the tokenizer: encoding replays it. With more merges the same text takes fewer tokens.
# How many fewer?

# %%
sentence = "The goat was waiting for a boat."
guess = ...  # tokens of the sentence (32 bytes) with all 7,935 merges of the model `tales`

guesses.reveal("tokens-of-sentence", guess, measured=len(tok.encode(sentence)))

# %% tags=["after-guess"]
counts = [0, 10, 50, 100, 250, 500, 1000, 2000, 4000, len(tok.merges)]
tokens = [len(with_first_merges(tok, n).encode(sentence)) for n in counts]
assert tokens == sorted(tokens, reverse=True)  # a merge never makes a text longer
show_lines(
    f"The first 500 merges do most of the work: {tokens[0]} tokens become {tokens[5]}",
    f"“{sentence}”",
    ("merges in use", counts),
    "tokens of the sentence",
    {"": tokens},
    log="x",
    dots=True,
)

# %% [markdown]
# ## 2. Type into the tokenizer
#
# Each coloured piece is a token, with its number below it. Write your name, some code, another language, an emoji. Click
# a token to see how its word was put together, and take merges away with the slider.
#
# What you see is computed in your browser, from the same 7,935 merges. No Python is needed.

# %%
tokenizer_piece(tok, "Once upon a time there lived an unbelievable 🐐.")

# %% [markdown]
# - Write "dog" and " dog". Why are these different tokens?
# - Which is the longest word of yours that is a single token?
# - Type `<|endoftext|>`. It becomes ordinary characters. A visitor must not be able to end other people's texts:

# %%
print("from a visitor:", tok.encode("<|endoftext|>"))
print("from code that may:", tok.encode("<|endoftext|>", allowed_special="all"))

# %% [markdown]
# ## 3. Half a character
#
# A token holds bytes, and an emoji has four of them. A stream of text has to wait until they make a character.

# %%
stream = StreamDecoder(tok)
show_table(
    ["token", "its bytes", "decoded by itself", "what a stream shows"],
    [
        [str(i), tok.token_bytes[i].hex(" "), repr(tok.decode([i])), repr(stream.push(i))]
        for i in tok.encode("a 🐐!")
    ],
)

# %% [markdown]
# ## 4. What a token costs
#
# Models are sold by the token. How much text is a token? The course has one and the same story in English, Chinese and
# Hindi.

# %%
english, hindi = (len(tok.encode(sample_text(name))) for name in ("prose", "hindi"))
guess = ...  # how many times as many tokens does the story take in Hindi?

guesses.reveal("hindi", guess, measured=hindi / english)

# %% tags=["after-guess"]
found = {"tales": {name: measure_density(tok, sample_text(name)) for name in CONTENT}}
show_figure(draw_density(found, CONTENT))

# %% [markdown]
# ## 5. From a number to a place
#
# The model holds a table with one row for each token. No meaning was written into the rows. The model was trained to guess
# the next token, and words that fit the same gaps were pushed together. How near are two rows? The **cosine** is 1 for
# the same direction and 0 for nothing in common.

# %%
e = load_embeddings(model_folder)
show_table(["word", "its neighbours, with their cosines"], [
    [word, ", ".join(f"{near.strip()} {c:.2f}" for near, c in e.neighbours(word, 5))]
    for word in ("king", "brother", "red", "seven")
])  # fmt: skip

# %%
pair = ("king", "kitchen")
guess = ...  # cosine of king and kitchen, 0 to 1

guesses.reveal(
    "king-kitchen",
    guess,
    measured=round(float(cosine(*e.vectors(pair))), 2),
    siblings=float(cosine(*e.vectors(["brother", "sister"]))),
)

# %% [markdown]
# All that enters the first layer is a sum of two rows: `wte[token] + wpe[position]`. Without the second one, order would
# be lost:

# %%
a, b = (tok.encode(s) for s in (" dog bites man", " man bites dog"))
tokens_only = torch.sort(e.wte[a], dim=0).values.equal(torch.sort(e.wte[b], dim=0).values)
with_positions = torch.sort(e.input_matrix(a), dim=0).values.equal(
    torch.sort(e.input_matrix(b), dim=0).values
)
print("the same set of vectors, without positions:", tokens_only)
print("the same set of vectors, with positions:   ", with_positions)
assert tokens_only and not with_positions

# %% [markdown]
# ## 6. What is in the file
#
# A safetensors file is eight bytes, a JSON header, and numbers. Read it with nothing but `struct` and `json`:

# %%
with open(model_folder / "model.safetensors", "rb") as file:
    (header_bytes,) = struct.unpack("<Q", file.read(8))
    header = json.loads(file.read(header_bytes))
print(f"header: {header_bytes:,} bytes, {len(header)} entries")
for name in list(header)[1:4]:
    print(f"{name}: {header[name]}")

# %%
box = open_safetensors([model_folder / "model.safetensors"])
guess = ...  # which share of all bytes is the embedding table, in percent?

guesses.reveal("embedding-share", guess, measured=round(100 * box.sizes["embedding"] / box.total_bytes))

# %% tags=["after-guess"]
parts = box.sizes.most_common()
assert box.total_bytes == sum(size for _, size in box.files)  # every byte is accounted for
show_bars(
    f"Where the {box.total_bytes / 1e6:.1f} MB of tales are",
    "model.safetensors in bf16, with its tokenizer and settings",
    "MB",
    {part: size / 1e6 for part, size in parts},
    labels=[f"{size / 1e6:.2f}" for _, size in parts],
)

# %% [markdown]
# ## 7. Who fits on the card
#
# Every user's text leaves keys and values in the memory of the card (Phase 2 builds this **KV cache**):
#
#     bytes a token = 2 x layers x KV heads x head size x bytes a number

# %%
llama = SHAPES["llama-3-8b"]
guess = ...  # bytes that one token of Llama-3 8B leaves (32 layers, 8 KV heads of 128, 2 bytes a number)

guesses.reveal("kv-bytes", guess, measured=kv_per_token(llama))

# %%
guess = ...  # users with 8,192 tokens each, beside Llama-3 8B in 16 bit, on an A100 with 80 GB

guesses.reveal(
    "users-on-a100",
    guess,
    measured=users_that_fit(llama, CARDS["a100-80"], 8192),
    each=8192 * kv_per_token(llama) / GB,
)

# %% tags=["after-guess"]
contexts = [512 * 2**i for i in range(5)]
show_lines(
    "Double the context, halve the users",
    "Llama-3 8B in 16 bit",
    ("tokens of each user", contexts),
    "users at a time",
    {CARDS[c].title: [users_that_fit(llama, CARDS[c], n) for n in contexts] for c in ("a100-80", "l4")},
    log="xy",
    dots=True,
    ticks=contexts,
)

# %% [markdown]
# ## 8. Your score, and what next

# %%
guesses.score()

# %% [markdown]
# - Change the text in section 1 until "the" is not the first word to become one token.
# - Which of your favourite words has the strangest neighbours?
#
# Then build the parts yourself. Each exercise has a check that says what is wrong, and hints where you want them:
#
# - [1.1 Which pair comes most often?](exercises/p1e1_pairs.ipynb)
# - [1.2 From a word to its tokens](exercises/p1e2_encode.ipynb)
# - [1.3 Never show half a character](exercises/p1e3_streaming.ipynb)
# - [1.4 Where in the file is that tensor?](exercises/p1e4_header.ipynb)
# - [1.5 How many users fit on the card?](exercises/p1e5_kv_bytes.ipynb)
# - [1.6 A chat that nobody can forge](exercises/p1e6_chat.ipynb)
#
# [Phase 2](phase2_attention_kvcache.ipynb) turns the vectors into the next word.
