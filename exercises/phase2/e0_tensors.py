# %% [markdown]
# # 2.0 Tensors: a matrix product and a softmax
#
# All of phase 2 uses a few operations on tensors. [Its primer](../../phase2_attention_kvcache/TENSORS.md)
# shows them in two pages; here you write the shortest part of a model that needs all of them. It is also the last layer of
# every language model: the **LM head** (language model head), which turns vectors into probabilities.
#
# - `hidden` is `[N, d]`: a row of d numbers for each of N tokens. It encodes the model's prediction of the next token.
# - `table` is `[V, d]`: a row of d numbers for each of the V tokens of the vocabulary.
# - The **dot product** of two rows multiplies them number by number and adds up the results. It is large if the rows have similar
#   directions. The **score** (logit) of a word is the dot product of its row with the token's row.
# - **Softmax** turns the scores of one token into probabilities: e to the power of each score, divided by the sum of these. They
#   add up to 1.
#
# By hand, with d = 2 and V = 3: `hidden` is `[[1, 0]]`, `table` is `[[0, 5], [0.6931, 0], [1.6094, 7]]`. The scores are
# 1·0 + 0·5 = 0, then 0.6931, then 1.6094. Their exponentials are 1, 2 and 5, with the sum 8. So the result is
# `[[1/8, 2/8, 5/8]]`: `[1, 3]`, a row for the token, a column for each word.
#
# You need three operations: `a @ b` multiplies each row of a with each *column* of b. `b.T` is b with rows and columns
# exchanged. `torch.softmax(x, dim=...)` takes the dimension along which the probabilities add up to 1.
# %%
import torch

from exercises.grading import check, hint


# %% tags=["answer"]
def next_probabilities(hidden: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Compute the probability of each word of the vocabulary to come next.

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
# `tales` has 8,192 words and vectors of 256 numbers. Its LM head uses its table of embeddings a second time. Below, your function
# replaces the LM head. The engine needs scores, not probabilities. It gets the logarithm of your probabilities, from which softmax
# computes the same probabilities again.
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
same_or_stop(mine, course, says="with your LM head the model writes other tokens")
print("The same tokens as the course's:")
for prompt, answer in zip(prompts, mine):
    print("-", tokenizer.decode(prompt + answer))
