# %% [markdown]
# # 1.1 Which pair comes most often?
#
# Training a tokenizer repeats two small steps:
#
# 1. **Count** how often each pair of neighbours occurs.
# 2. **Merge** the most frequent pair: replace each of its occurrences by one new token.
#
# Each round adds one token to the vocabulary. You write both steps. The course's version is in
# `phase1_tokens_embeddings/tokens/bpe.py`; read it afterwards.
#
# By hand, for the tokens `1 2 3 1 2`:
#
# - the neighbours are `(1, 2)`, `(2, 3)`, `(3, 1)`, `(1, 2)`, so the counts are `{(1, 2): 2, (2, 3): 1, (3, 1): 1}`
# - merging `(1, 2)` into the new token `9` gives `9 3 9`
#
# Two rules. In `7 7 7` there are two pairs `(7, 7)`: first and second, second and third. Both count.
# But a token can be merged only once, so merging goes from the left: `7 7 7` becomes `9 7`. `merge` returns a new list;
# neither function changes `tokens`.
# %%
from exercises.grading import check, hint


# %% tags=["answer"]
def count_pairs(tokens: list[int]) -> dict[tuple[int, int], int]:
    """Count each pair of neighbours: {(left, right): count}."""
    # BEGIN SOLUTION
    counts = {}
    for pair in zip(tokens, tokens[1:]):
        counts[pair] = counts.get(pair, 0) + 1
    return counts
    # END SOLUTION


def merge(tokens: list[int], pair: tuple[int, int], new_id: int) -> list[int]:
    """Replace each occurrence of `pair` by `new_id`, from the left."""
    # BEGIN SOLUTION
    merged = []
    i = 0
    while i < len(tokens):
        if tuple(tokens[i : i + 2]) == pair:
            merged.append(new_id)
            i += 2
        else:
            merged.append(tokens[i])
            i += 1
    return merged
    # END SOLUTION


# %% tags=["check"]
check("p1e1_pairs", count_pairs, merge)
# %% [markdown]
# ## Into the course
#
# With your two functions, a tokenizer takes ten lines. Here it learns twenty merges from a sentence, and the course's
# `learn_merges` must find the same merges in the same order. (Your version reads the whole text for every merge. The course's
# version counts each *different* word once, and after a merge updates only the words that contain the pair. So it can learn from
# millions of words.)
# %% tags=["engine"]
from collections import Counter

from exercises.judging.engine_runs import passed, same_or_stop
from phase1_tokens_embeddings.tokens.bpe import learn_merges

passed("p1e1_pairs", count_pairs, merge)
text = "the cat sat on the mat, and the rat sat on the cat that sat on the hat"
tokens, learned = list(text.encode()), []
for new_id in range(256, 276):
    counts = count_pairs(tokens)
    best = max(counts, key=lambda pair: (counts[pair], -pair[0], -pair[1]))  # of equals the smaller pair
    tokens = merge(tokens, best, new_id)
    learned.append(best)

same_or_stop(learned, learn_merges(Counter({text: 1}), 20), says="your functions learn other merges")
print(f"{len(text)} bytes became {len(tokens)} tokens; the course learned the same 20 merges.")
