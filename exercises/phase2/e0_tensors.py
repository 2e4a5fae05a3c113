# %% [markdown]
# # 2.0 Tensors: a matrix product and a softmax
#
# All of phase 2 is made of a few operations on blocks of numbers. [Its primer](../../phase2_attention_kvcache/TENSORS.md)
# shows them in two pages; here you write the shortest piece of a model that needs all of them. It is also the last thing that
# every language model does: the **LM head** (language model head), which makes probabilities of vectors.
#
# - `hidden` is `[N, d]`: a row for each of N tokens, d numbers in it. It says what the model thinks comes next.
# - `table` is `[V, d]`: a row for each of the V tokens of the vocabulary, in the same d numbers.
# - The more two rows point the same way, the larger their **dot product**: multiply number by number, add all of it up.
#   So the **score** (logit) of a word is the dot product of its row with the token's row.
# - **Softmax** makes probabilities of the scores of one token: e to the power of each, divided by the sum of these. They add
#   up to 1.
#
# By hand, with d = 2 and V = 3: `hidden` is `[[1, 0]]`, `table` is `[[0, 5], [0.6931, 0], [1.6094, 7]]`. The scores are
# 1·0 + 0·5 = 0, then 0.6931, then 1.6094. e to their power is 1, 2 and 5; their sum is 8. So the result is
# `[[1/8, 2/8, 5/8]]`: `[1, 3]`, a row for the token, a column for each word.
#
# Three things that you need: `a @ b` multiplies each row of a with each *column* of b. `b.T` is b with rows and columns
# exchanged. `torch.softmax(x, dim=...)` wants to know along which dimension the numbers add up to 1.
# %%
import torch

from exercises.grading import check, hint


# %% tags=["answer"]
def next_probabilities(hidden: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """How likely each word of the vocabulary comes next.

    Args:
        hidden: [N, d], a vector for each token. table: [V, d], a vector for each word.

    Returns:
        [N, V]. Each row adds up to 1.
    """
    # BEGIN SOLUTION
    return torch.softmax(hidden @ table.T, dim=-1)
    # END SOLUTION


# %% tags=["check"]
check("p2e0_tensors", next_probabilities)
# %% [markdown]
# ## Into the engine
#
# `tales` has 8,192 words and vectors of 256 numbers. Its LM head is its own table of embeddings, used a second time. Below,
# your function stands in its place. The engine wants scores, not probabilities; their logarithm will do, since softmax
# turns it into the same probabilities again.
# %% tags=["engine"]
import copy

from exercises.judging.engine_runs import passed, same_or_stop, tales
from exercises.phase2.in_engine import tokens_of

passed("p2e0_tensors", next_probabilities)
model, tokenizer = tales()
with_yours = copy.copy(model)
with_yours.logits = lambda hidden: next_probabilities(hidden, model.token_table.weight).log()
prompts = [tokenizer.encode(text) for text in ("The fox said to the crow,", "At night the children heard")]
mine, course = (tokens_of(each, prompts) for each in (with_yours, model))
same_or_stop(mine, course, says="with your LM head the model writes something else")
print("Token for token the course's story:")
for prompt, answer in zip(prompts, mine):
    print("-", tokenizer.decode(prompt + answer))
