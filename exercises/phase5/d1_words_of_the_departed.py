# %% [markdown]
# # Debugging lab 5: stray tokens
#
# **The symptom.** On a GPU, a server's answers are a little worse than they should be. No error, no crash; a test of arithmetic problems gets
# a few points less. With CUDA graphs switched off (`enforce_eager`) all is well, and so it is while many users come and stay. It happens when some
# users have left and a new one has come. SGLang had this bug for models with a sliding window (https://github.com/sgl-project/sglang/pull/24743).
#
# **What you need to know.** A **CUDA graph** is a recording of a whole step, started with one call. A recording knows addresses. It repeats
# the same work, for the same number of rows, on whatever lies at those addresses. So, before each replay, the step's numbers
# are *copied* to where they were when it was recorded. If there are fewer users than rows, the rest of the rows is **padding**. Nothing reads what
# padding computes.
#
# A small copy is in `exercises/phase5/small_graph.py`. Read it first: it has eighty lines. Its recording has four rows. For each row it stores a token
# in a slot, as `write_kv` does with keys and values. The memory holds the tokens themselves in place of keys and values.
#
# **Your task.** The answer cell holds `fill` with the bug in it. Repair it, and say which of these sentences is the cause:
#
# 1. `start` gives emma a block that is still in dan's table.
# 2. The recording was made before emma came, so it stores emma's token in a wrong place.
# 3. A row that stands for no user still holds what stood there before, and is stored again.
# 4. `end` does not erase a block, so emma reads what dan left in it.
# 5. The numbers reach the recording too late, so it works with those of the step before.
#
# The next cells show the symptom: run all of them.
# %%
import torch

from exercises.grading import check, hint
from exercises.phase5.small_graph import ROWS, SmallRunner


def symptom(kind: type[SmallRunner]) -> None:
    runner = kind(num_blocks=6, block_size=4)
    for user, prompt in {"alice": [11, 12], "bob": [21], "carol": [31, 32], "dan": [41, 42]}.items():
        runner.start(user, prompt)
    runner.step({"alice": 13, "bob": 22, "carol": 33, "dan": 43})
    runner.end("carol")
    runner.end("dan")
    runner.start("emma", [51, 52, 53])
    print(f"emma has come:      blocks {runner.tables['emma']} read as {runner.read('emma')}")
    runner.step({"alice": 14, "bob": 23, "emma": 54})
    print(f"one step later:     blocks {runner.tables['emma']} read as {runner.read('emma')}")
    print(f"emma's text is                     {runner.texts['emma']}")


# %% tags=["answer"]
class Runner(SmallRunner):
    """The small runner, with the method that brings a step's numbers to the recording."""

    def fill(self, tokens: list[int], slots: list[int]) -> None:
        """tokens, slots: one for each user of the step, 1 to ROWS of them."""
        # BEGIN SOLUTION
        # STUB: n = len(tokens)
        # STUB: self.tokens[:n] = torch.tensor(tokens)
        # STUB: self.slots[:n] = torch.tensor(slots)
        n = len(tokens)
        self.tokens[:n] = torch.tensor(tokens)
        self.slots[:n] = torch.tensor(slots)
        self.slots[n:] = -1  # who is not there stores nothing
        # END SOLUTION


cause = ...  # 1 to 5
# BEGIN SOLUTION
cause = 3
# END SOLUTION
# %% [markdown]
# Change something, and look again:
# %%
symptom(Runner)
# %% tags=["check"]
check("p5d1_words_of_the_departed", Runner, cause)
# %% [markdown]
# This course's own `fill` is in `phase5_real_gpu/kernels/gpu_runner.py`. Padding has slot -1 there, and `write_kv_kernel` stores no such row. SGLang
# gives padding slot 0, which is kept free for it. Either is right, as long as both sides mean the same by it: in vLLM's issue 43810
# (https://github.com/vllm-project/vllm/issues/43810) the padding has slot -1, and one of the caches is written by an
# ordinary index. To an index, -1 is the last place, and a user had it.
