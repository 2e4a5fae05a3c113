# %% [markdown]
# # Debugging lab 5b: words of another request
#
# **The symptom.** Prefill and decode run apart. Most answers are right. Now and then an answer continues with something that its user never
# asked. It happens only under load, and only when some users have closed their browser. With one engine for everything it never happens.
# vLLM's scheduler had this bug until January 2026 (https://github.com/vllm-project/vllm/pull/32255), with connectors that load asynchronously.
#
# **What you need to know.** A request whose prompt was computed elsewhere gets blocks, and a transfer into them begins. The transfer is not in
# the engine's hands: a network card, or a thread, writes into those addresses, and it cannot be called back. Some steps later it is over, and the
# engine is told so. Until then the request waits.
#
# A small copy is in `exercises/phase5/small_loader.py`. Read it first: it has sixty lines. A block holds one word.
#
# **Your task.** The answer cell holds `abort` and `loaded` with the bug in them. Repair them, and say which of these sentences is the cause:
#
# 1. `ask` gives bob a block that is still in alice's table.
# 2. `step` writes the words of one user into the blocks of another one, because it mixes up two transfers that arrive in the same step.
# 3. `give_back` does not erase a block, so bob reads what alice left in it.
# 4. A user's blocks are given to others while a transfer still writes into them.
# 5. bob reads before his own transfer has arrived.
#
# No block may be lost, either: when all users have gone and all transfers are over, all blocks are free. The next cells show the symptom: run
# all of them.
# %%
from exercises.grading import check, hint
from exercises.phase5.small_loader import SmallLoader


def symptom(kind: type[SmallLoader]) -> None:
    engine = kind(num_blocks=8)
    engine.ask("alice", ["once", "there", "was"], steps=3)
    engine.step()
    engine.abort("alice")
    engine.ask("bob", ["a", "king"], steps=1)
    engine.step()
    print(f"bob's words have come:   blocks {engine.tables['bob']} read as {engine.read('bob')}")
    engine.step()
    print(f"one step later:          blocks {engine.tables['bob']} read as {engine.read('bob')}")
    engine.end("bob")
    print(f"bob has gone:            {len(engine.free)} of 7 blocks are free")


# %% tags=["answer"]
class Loader(SmallLoader):
    """The small decode side, with what happens at an abort and at an arrival."""

    def abort(self, user: str) -> None:
        """A user does not want an answer any more; it has asked, and not ended."""
        # BEGIN SOLUTION
        # STUB: self.ready.discard(user)
        # STUB: self.give_back(user)
        self.ready.discard(user)
        if user in self.loading:
            self.held.add(user)  # the transfer cannot be called back: its blocks have to wait for it
        else:
            self.give_back(user)
        # END SOLUTION

    def loaded(self, user: str) -> None:
        """The transfer of this user has just arrived."""
        # BEGIN SOLUTION
        # STUB: if user in self.tables:
        # STUB:     self.ready.add(user)
        if user in self.held:
            self.held.remove(user)
            self.give_back(user)
        else:
            self.ready.add(user)
        # END SOLUTION


cause = ...  # 1 to 5
# BEGIN SOLUTION
cause = 4
# END SOLUTION
# %% [markdown]
# Change something, and look again:
# %%
symptom(Loader)
# %% tags=["check"]
check("p5d2_blocks_still_written", Loader, cause)
# %% [markdown]
# The first version of vLLM's repair held the blocks of everybody who was aborted in that state. The review found what that loses: if the transfer has
# arrived and the scheduler has not looked at it yet, no later message will say that it has. The course's own is `RemoteKVs.release` in
# `phase4_scheduler/features/kv_transfer/scheduler.py`. And a transfer whose end is never reported, because the other side was aborted as well, keeps
# its blocks for ever: vLLM's issue 46283 (https://github.com/vllm-project/vllm/issues/46283). That is what a lease is for.
