# %% [markdown]
# # Debugging lab 5: stray tokens
#
# **The symptom.** On a GPU, a server's answers are slightly worse than they should be. There is no error and no crash; the score in a test
# of arithmetic problems drops by a few points. With CUDA graphs switched off (`enforce_eager`) all answers are right, and also while users
# only arrive. It happens after some users have left and a new one has arrived. SGLang had this bug for models with a sliding window
# (https://github.com/sgl-project/sglang/pull/24743).
#
# **What you need to know.** A **CUDA graph** is a recording of a whole step, started with one call. A recording stores addresses. It repeats
# the same work, for the same number of rows, on the current data at those addresses. So, before each replay, the step's numbers
# are *copied* to the recorded addresses. If there are fewer users than rows, the remaining rows are **padding**. The results of padding are
# never read.
#
# A small copy is in `exercises/phase5/small_graph.py`. Read it first: it has eighty lines. Its recording has four rows. For each row it stores a token
# in a slot, as `write_kv` does with keys and values. The memory holds the tokens themselves in place of keys and values.
#
# **Your task.** The answer cell holds `fill` with the bug. Repair it, and choose the sentence that states the cause:
#
# 1. `start` gives emma a block that is still in dan's table.
# 2. The recording was made before emma arrived, so it stores emma's token in a wrong place.
# 3. A row without a user still holds the numbers of an earlier step, and they are stored again.
# 4. `end` does not erase a block, so emma reads dan's old data in it.
# 5. The numbers reach the recording too late, so it uses those of the previous step.
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
    print(f"emma has arrived:   blocks {runner.tables['emma']} read as {runner.read('emma')}")
    runner.step({"alice": 14, "bob": 23, "emma": 54})
    print(f"one step later:     blocks {runner.tables['emma']} read as {runner.read('emma')}")
    print(f"emma's text is                     {runner.texts['emma']}")


# %% tags=["answer"]
class Runner(SmallRunner):
    """The small runner, with the method that copies a step's numbers to the recording."""

    def fill(self, tokens: list[int], slots: list[int]) -> None:
        """Copy a step's numbers. tokens, slots: one for each user of the step, 1 to ROWS of them."""
        # BEGIN SOLUTION
        # STUB: n = len(tokens)
        # STUB: self.tokens[:n] = torch.tensor(tokens)
        # STUB: self.slots[:n] = torch.tensor(slots)
        n = len(tokens)
        self.tokens[:n] = torch.tensor(tokens)
        self.slots[:n] = torch.tensor(slots)
        self.slots[n:] = -1  # padding stores nothing
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
# gives padding slot 0, which is reserved for it. Either works, if all parts of the engine use the same value: in vLLM's issue 43810
# (https://github.com/vllm-project/vllm/issues/43810) the padding has slot -1, and one of the caches is written by ordinary
# indexing. There -1 is the last place, which belonged to a user.
