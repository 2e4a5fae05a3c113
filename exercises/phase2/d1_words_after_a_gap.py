# %% [markdown]
# # Debugging lab 2: a story with a gap
#
# **The symptom.** A small engine writes text with a KV cache. The first token of each answer is always right. The rest reads
# like language, but it is another story than the one that the model tells without a cache, and after the prompt below a
# worse one. With very long prompts it stops with an error instead.
#
# This was a real bug, in tiny-llm, a course like this one: its pull request 46
# (https://github.com/skyzh/tiny-llm/pull/46) has a log of it. Below is our own loop with the bug planted.
#
# What you need to know:
#
# - `step(tokens, first)` computes tokens on top of all computed before, and returns the likeliest next one. `first` is the
#   **position** of the first of these tokens in the text, counted from 0. The others follow it.
# - The cache hands out keys and values in the order in which they came. It does not know positions. But the model was trained
#   with them: a token believes to stand where it is told.
#
# Run the next two cells, and look at the symptom first.
# %%
import torch

from exercises.grading import check, hint
from labkit.models import find_model
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.model import ContiguousKVCache, Transformer, generate_cached, generate_naive


def broken_generate(step, prompt_ids, max_new_tokens):
    """With the bug. Copy it into your answer below, and repair it there."""
    new, offset, answer = list(prompt_ids), 0, []
    token = step(new, offset)
    offset += len(new)
    while True:
        answer.append(token)
        if len(answer) == max_new_tokens:
            return answer
        offset += len(new)
        new = [token]
        token = step(new, offset)


# %%
tokenizer, model = (
    BPETokenizer.from_file(find_model("tales") / "tokenizer.json"),
    Transformer.from_pretrained("tales"),
)


def new_step():
    """A `step` of the embedded model with an empty cache."""
    cache = ContiguousKVCache(model.config)

    def step(tokens, first):
        with torch.inference_mode():
            hidden = model(torch.tensor(tokens), torch.arange(first, first + len(tokens)), cache)
            return int(model.logits(hidden[-1:])[0].argmax())

    return step


prompt = tokenizer.encode(
    "A fisherman and his wife lived together in a little hut by the sea, and every day he went out with his net. One day, "
    "when he pulled the net up, there was a great golden fish in it, and the fish began to speak and said:"
)
right, wrong = generate_naive(model, prompt, 30).token_ids, broken_generate(new_step(), prompt, 30)
agree = next(i for i in range(30) if right[i] != wrong[i])
print("without a cache: ", tokenizer.decode(right))
print("the broken copy: ", tokenizer.decode(wrong))
print(f"The first {agree} of 30 tokens agree, then they are two stories.")
try:
    broken_generate(new_step(), (prompt * 100)[:600], 3)
except ValueError as error:
    print(f"600 tokens of prompt: {error}")
# %% [markdown]
# ## Find it, say what it is, repair it
#
# A good way: let `step` print `len(tokens)` and `first`, with a prompt of 6 tokens. Compare with what you expect.
#
# Two answers are asked for. `generate` is the repaired loop. And so that you do not repair by chance, `wrong_place` says
# where the *broken* copy puts a token of the answer. By hand: the prompt has 6 tokens, positions 0 to 5. Token 0 of the
# answer belongs at 6. Where did it go? And token 1?


# %% tags=["answer"]
def generate(step, prompt_ids, max_new_tokens):
    """Write max_new_tokens tokens. The last of them is never computed: what follows it is not asked for."""
    # BEGIN SOLUTION
    new, offset, answer = list(prompt_ids), 0, []
    while True:
        token = step(new, offset)
        offset += len(new)  # once for each step, and before `new` becomes another
        answer.append(token)
        if len(answer) == max_new_tokens:
            return answer
        new = [token]
    # END SOLUTION


def wrong_place(prompt_length: int, i: int) -> int:
    """The position at which the broken copy computes token i of the answer (0 is the first)."""
    # BEGIN SOLUTION
    return 2 * prompt_length + i
    # END SOLUTION


# %% tags=["check"]
check("p2d1_words_after_a_gap", generate, wrong_place)
# %% [markdown]
# ## Into the engine
#
# Your loop drives the real model and its cache. It has to tell the same story as the course's loop, and
# a long prompt must no longer fall off the end of the position table.
# %% tags=["engine"]
from exercises.judging.engine_runs import passed, same_or_stop

passed("p2d1_words_after_a_gap", generate, wrong_place)
mine = generate(new_step(), prompt, 30)
same_or_stop(
    mine,
    generate_cached(model, prompt, 30).token_ids,
    says="your loop writes something else than the course's",
)
long = (prompt * 100)[:600]
theirs = generate_cached(model, long, 3).token_ids
same_or_stop(generate(new_step(), long, 3), theirs, says="after 600 tokens your loop writes something else")
print("repaired:        ", tokenizer.decode(mine))
# %% [markdown]
# Why did no test of the broken loop notice? A test with one new token passes. So does one that looks whether the text is
# "fluent". The test that finds it compares, token for token, with a loop that has no cache. This course does so everywhere.
