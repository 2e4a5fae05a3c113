# %% [markdown]
# # Debugging lab 3: bob reads carol's words
#
# **The symptom.** A server answers well for hours. Then, with many users and a common system prompt, an answer
# begins sensibly and ends with another user's subject. There is no error and no crash. It never happens with a single user, and never
# with prefix caching switched off.
#
# This is a real bug of mini-sglang, a small engine: its pull request 142 (https://github.com/sgl-project/mini-sglang/pull/142,
# July 2026) describes it and proposes a fix. (mini-sglang's cache is a tree of token runs; here it is a dict of block hashes. The
# mistake is the same.) It is planted in a small copy, `exercises/phase3/small_manager.py`. Read that file first: it has a hundred
# lines. Its blocks hold the tokens themselves in place of keys and values, so that `read` shows which text a user reads.
#
# A step calls `start` for each new request, then `compute`, then `remember`. Two requests that share a beginning and start in the
# same step do not find each other's blocks, because the cache is still empty. Each request computes its own blocks. `remember` then
# finds that they are equal, and keeps one of them.
#
# **Your task.** The answer cell holds `remember` with the bug. Repair it, and choose the sentence that states the cause:
#
# 1. `start` gives alice's blocks to bob before alice has computed them.
# 2. `remember` enters bob's block under the hash of alice's block, so the cache returns a block of another text.
# 3. `remember` frees bob's own block, and bob's table still lists it.
# 4. `remember` runs for bob before alice's block is computed, so it keeps an empty block.
# 5. `take` does not remove the old hash of a block, so bob finds a block with new content under it.
#
# The next cells show the symptom: run all of them.
# %%
from exercises.grading import check, hint
from exercises.phase3.small_manager import SmallManager


def symptom(kind: type[SmallManager]) -> None:
    m = kind(num_blocks=6, block_size=4)
    prompt = [1, 2, 3, 4, 5, 6]
    for user in ("alice", "bob"):  # both in the same step
        m.start(user, prompt)
    for user in ("alice", "bob"):
        m.compute(user)
    for user in ("alice", "bob"):
        m.remember(user)
    m.start("dora", [7, 8, 9])  # the next steps: dora comes and goes, carol comes
    m.compute("dora")
    m.end("dora")
    m.start("carol", [70, 80, 90])
    m.compute("carol")
    for user in ("alice", "bob", "carol"):
        print(f"{user:6} blocks {m.tables[user]} read as {m.read(user)}")
    print(f"free: {list(m.free)}, counts: {m.ref_count}")


# %% tags=["answer"]
class Manager(SmallManager):
    """The small manager, with the method that merges equal blocks."""

    def remember(self, user: str) -> None:
        """After the step, enter this user's full blocks in the cache, and keep one of several equal blocks."""
        # BEGIN SOLUTION
        # STUB: table = self.tables[user]
        # STUB: for i, name in enumerate(self.names(self.texts[user])):
        # STUB:     same = self.cached.setdefault(name, table[i])  # the block with this hash, or the own block
        # STUB:     if same != table[i]:
        # STUB:         self.drop(table[i])  # one copy is enough
        table = self.tables[user]
        for i, name in enumerate(self.names(self.texts[user])):
            same = self.cached.setdefault(name, table[i])  # the block with this hash, or the own block
            if same != table[i]:
                self.point_to(same)
                self.drop(table[i])  # one copy is enough
                table[i] = same
        # END SOLUTION


cause = ...  # 1 to 5
# BEGIN SOLUTION
cause = 3
# END SOLUTION
# %% [markdown]
# Change something, and look again:
# %%
symptom(Manager)
# %% tags=["check"]
check("p3d1_freed_and_read", Manager, cause)
# %% [markdown]
# A block manager need not merge equal blocks. This course's `BlockManager` and vLLM never do: a hash leads to all blocks
# with this content, and each request keeps its own. That sometimes wastes a block, but a table never changes after its blocks are
# computed.
