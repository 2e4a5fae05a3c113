# %% [markdown]
# # Debugging lab 2: a story with a gap
#
# **The symptom.** A small engine writes text with a KV cache. The first token of each answer is always right. The rest reads
# like language, but it differs from the story that the model writes without a cache, and after the prompt below it is
# worse. With very long prompts the engine stops with an error.
#
# This was a real bug in tiny-llm, a similar course: its pull request 46
# (https://github.com/skyzh/tiny-llm/pull/46) contains a log of it. Below is the course's own loop with the bug planted.
#
# What you need to know:
#
# - `step(tokens, first)` computes tokens that follow all tokens computed before, and returns the most likely next one. `first` is
#   the **position** of the first of these tokens in the text, counted from 0. The other tokens follow it.
# - The cache returns keys and values in the order in which they were stored. It does not know positions. The model does: it
#   computes each token for the position that `step` receives.
#
# First run the next two cells and read the symptom.
# %%
import torch

from exercises.grading import check, hint
from labkit.models import find_model
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.model import ContiguousKVCache, Transformer, generate_cached, generate_naive


def broken_generate(step, prompt_ids, max_new_tokens):
    """Generate with the bug. Copy the body into your answer below, and repair it there."""
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
print(f"The first {agree} of 30 tokens agree, then the stories differ.")
try:
    broken_generate(new_step(), (prompt * 100)[:600], 3)
except ValueError as error:
    print(f"600 tokens of prompt: {error}")
# %% [markdown]
# ## Find the bug, explain it, repair it
#
# A good way: let `step` print `len(tokens)` and `first`, with a prompt of 6 tokens. Compare with the positions that you expect.
#
# Write two functions. `generate` is the repaired loop. `wrong_place` returns the position at which the *broken* copy computes a token
# of the answer, so that a lucky repair is not enough. By hand: the prompt has 6 tokens, positions 0 to 5. Token 0 of the
# answer belongs at position 6. Which position did it get? And token 1?


# %% tags=["answer"]
def generate(step, prompt_ids, max_new_tokens):
    """Write max_new_tokens tokens. The model never computes the last one, because its successor is not needed."""
    # BEGIN SOLUTION
    new, offset, answer = list(prompt_ids), 0, []
    while True:
        token = step(new, offset)
        offset += len(new)  # once per step, before `new` is replaced
        answer.append(token)
        if len(answer) == max_new_tokens:
            return answer
        new = [token]
    # END SOLUTION


def wrong_place(prompt_length: int, i: int) -> int:
    """Return the position at which the broken copy computes token i of the answer (0 is the first)."""
    # BEGIN SOLUTION
    return 2 * prompt_length + i
    # END SOLUTION


# %% tags=["check"]
check("p2d1_words_after_a_gap", generate, wrong_place)
# %% [markdown]
# ## Into the engine
#
# Your loop runs the real model with its cache. It must write the same story as the course's loop, and
# a long prompt must no longer exceed the table of positions.
# %% tags=["engine"]
from exercises.judging.engine_runs import passed, same_or_stop

passed("p2d1_words_after_a_gap", generate, wrong_place)
mine = generate(new_step(), prompt, 30)
same_or_stop(
    mine, generate_cached(model, prompt, 30).token_ids, says="your loop writes other tokens than the course's"
)
long = (prompt * 100)[:600]
theirs = generate_cached(model, long, 3).token_ids
same_or_stop(generate(new_step(), long, 3), theirs, says="after 600 tokens your loop writes other tokens")
print("repaired:        ", tokenizer.decode(mine))
# %% [markdown]
# Which test of the broken loop would fail? A test with one new token passes, and so does a test for fluent text. A test fails if
# it compares, token for token, with a loop without a cache. This course does so everywhere.
