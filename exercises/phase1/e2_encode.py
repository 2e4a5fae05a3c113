# %% [markdown]
# # 1.2 From a word to its tokens
#
# Training produces a list of tokens in the order in which they were learned. The position of a token in that list is its
# **rank**, and here also its id. Encoding a word replays the training:
#
# 1. Start with single bytes.
# 2. Among all neighbours whose joined bytes are a token, find the token with the **lowest rank**, which was learned first.
#    Join these neighbours. If they occur several times, join the leftmost.
# 3. Repeat step 2 until no two neighbours can be joined.
#
# The rank decides, not the length of the token and not its place in the word.
#
# By hand. The ranks: `a 0, b 1, c 2, bc 3, ab 4, abb 5`.
#
# - `abc` starts as `a b c`. Two joins are possible: `ab` (rank 4) and `bc` (rank 3). The lower rank wins: `a bc`. The joined bytes
#   `abc` are no token. So the result is `[0, 3]`.
# - `abb` starts as `a b b`. Only `ab` can be joined: `ab b`. Then `abb` can be joined. The result is `[5]`.
# - `abbc`: again `bc` comes first: `a b bc`, then `ab bc`: `[4, 3]`. The longest token, `abb`, never appears.
#
# Single bytes have ids as well, which may differ from the byte's value. In GPT-2's table "!" (byte 33) has id 0.
#
# Words here are `bytes`. `word[0]` is a number; `word[0:1]` is the first byte as `bytes`, which you can look up in the
# table and join with `+`.
# %%
from exercises.grading import check, hint


# %% tags=["answer"]
def encode(word: bytes, ranks: dict[bytes, int]) -> list[int]:
    """The ids of a word's tokens.

    Args:
        word: the bytes of one word.
        ranks: bytes of each token -> its rank, which is its id. All single bytes are in it.
    """
    # BEGIN SOLUTION
    parts = [word[i : i + 1] for i in range(len(word))]
    while True:
        joins = [(ranks[a + b], i) for i, (a, b) in enumerate(zip(parts, parts[1:])) if a + b in ranks]
        if not joins:
            return [ranks[part] for part in parts]
        _, i = min(joins)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    # END SOLUTION


# %% tags=["check"]
check("p1e2_encode", encode)
# %% [markdown]
# ## Into the engine
#
# Now the engine gets its prompt from your function: the text is split into words as in GPT-2, and your `encode` encodes each
# word. Ids and story must be those of the engine's own tokenizer.
#
# Compare the speed, too. The course keeps the possible joins in a heap, which returns the lowest rank at once. For short words
# that gains nothing, so there is one "word" of 1,500 letters as well. If an encoder examines all pairs after every join, its work grows
# with the *square* of the length: a user may send 100,000 letters, and they would take minutes.
# %% tags=["engine"]
import random

import regex

from exercises.judging.engine_runs import passed, same_or_stop, speed, timed
from labkit.models import find_model
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase1_tokens_embeddings.tokens.bpe import GPT2_SPLIT_PATTERN, split_words
from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine import LLMEngine

passed("p1e2_encode", encode)
engine = LLMEngine.from_pretrained("tales", dtype="float32", device="cpu", max_num_seqs=2, max_model_len=128)
prompt = "Once upon a time there was an unbelievable little goat who"


def your_ids(text):
    """Encode word by word. As in the course's tokenizer, each different word is encoded once."""
    known = {}
    words = split_words(regex.compile(GPT2_SPLIT_PATTERN), text)
    for word in words:
        if word not in known:
            known[word] = encode(word.encode(), engine.tokenizer.id_of_bytes)
    return [token_id for word in words for token_id in known[word]]


greedy = SamplingParams(temperature=0, max_tokens=24)
ids, course_ids = your_ids(prompt), engine.tokenizer.encode(prompt)
same_or_stop(ids, course_ids, says="the course's tokenizer gives other ids")
mine, course = engine.generate([ids], greedy)[0], engine.generate([prompt], greedy)[0]
same_or_stop(mine.token_ids, course.token_ids, says="with your ids the model writes something else")
print(f"{len(ids)} tokens, the same as the course's. The story goes on:")
print(prompt + mine.text)
texts = {
    "900 short words": " ".join(f"unbelievable{n} little{n} woodcutters{n}" for n in range(300)),
    "One word of 1,500 letters": "".join(random.Random(1).choices("etaoinshrdlu", k=1500)),
}
for name, text in texts.items():
    fresh = [BPETokenizer.from_file(find_model("tales") / "tokenizer.json") for _ in range(2)]
    course_ids, course_seconds = timed(lambda text=text, fresh=fresh: fresh.pop().encode(text))
    ids, my_seconds = timed(lambda text=text: your_ids(text))
    same_or_stop(ids, course_ids, says=f"for {name.lower()} the course's tokenizer gives other ids")
    print(f"{name}. {speed(my_seconds, course_seconds)}")
