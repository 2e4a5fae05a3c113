# %% [markdown]
# # Debugging lab 3: bob reads carol's words
#
# **The symptom.** A server answers well for hours. Then, with many users who use the same system prompt, an answer goes astray: it
# begins sensibly and ends in another user's subject. No error, no crash. It never happens with a single user, and never with
# prefix caching switched off.
#
# This is a real bug of mini-sglang, a small engine: its pull request 142 (https://github.com/sgl-project/mini-sglang/pull/142,
# July 2026) tells of it and proposes a fix. (There the cache is a tree of token runs, here a dict of names; the mistake is the
# same.) We planted it in a small copy, `exercises/phase3/small_manager.py`. Read that first, it has a hundred lines. In place of
# keys and values its blocks hold the tokens themselves, so that one can see who reads what.
#
# A step goes like this: `start` for each new request, then `compute`, then `remember`. Two requests that begin alike and start in the
# same step do not find each other's blocks, for nothing is in the cache yet. Each computes its own. `remember` notices
# afterwards that they are equal, and wants to keep one.
#
# **Your task.** The answer cell holds `remember` with the bug in it. Repair it, and say which of these sentences is the cause:
#
# 1. `start` gives bob the blocks of alice before alice has computed them.
# 2. `remember` enters bob's block under the name that leads to alice's, so the cache leads to a block of another text.
# 3. `remember` gives bob's own block back, and bob's table still leads to it.
# 4. `remember` runs for bob before alice's block is computed, so it keeps a block in which nothing is written yet.
# 5. `take` forgets to remove the old name of a block, so bob finds a block with new content under it.
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
        """After the step: enter this user's full blocks in the cache, and keep one of those that are equal."""
        # BEGIN SOLUTION
        # STUB: table = self.tables[user]
        # STUB: for i, name in enumerate(self.names(self.texts[user])):
        # STUB:     same = self.cached.setdefault(name, table[i])  # what has this name; ours, if nothing had
        # STUB:     if same != table[i]:
        # STUB:         self.drop(table[i])  # one copy is enough
        table = self.tables[user]
        for i, name in enumerate(self.names(self.texts[user])):
            same = self.cached.setdefault(name, table[i])  # what has this name; ours, if nothing had
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
# Merging is not the only way out. This course's own `BlockManager` and vLLM do not merge at all: a name leads to all the blocks
# that hold its content, and each request keeps its own. That wastes a block now and then, and no table ever changes under
# anybody's feet.
