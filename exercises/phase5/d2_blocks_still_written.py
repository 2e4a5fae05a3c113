# %% [markdown]
# # Debugging lab 5b: words of another request
#
# **The symptom.** Prefill and decode run on separate engines. Most answers are right. But sometimes an answer continues with text that
# its user never asked about. It happens only under load, and only after some users have closed their browser. With one engine for both
# it never happens. vLLM's scheduler had this bug until January 2026 (https://github.com/vllm-project/vllm/pull/32255), with connectors that
# load asynchronously.
#
# **What you need to know.** A request whose prompt was computed on another engine gets blocks, and a transfer into them begins. The engine
# cannot stop the transfer: a network card or a thread writes to those addresses. Some steps later the transfer is over, and the
# engine gets a message. Until then the request waits.
#
# A small copy is in `exercises/phase5/small_loader.py`. Read it first: it has sixty lines. A block holds one word.
#
# **Your task.** The answer cell holds `abort` and `loaded` with the bug. Repair them, and choose the sentence that states the cause:
#
# 1. `ask` gives bob a block that is still in alice's table.
# 2. `step` writes the words of one user into the blocks of another one, because it mixes up two transfers that arrive in the same step.
# 3. `give_back` does not erase a block, so bob reads alice's old words in it.
# 4. A user's blocks are given to other users while a transfer still writes into them.
# 5. bob reads before his own transfer has arrived.
#
# No block may be lost: when all users have ended and all transfers are over, all blocks are free. The next cells show the symptom: run
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
    print(f"bob's words are loaded:  blocks {engine.tables['bob']} read as {engine.read('bob')}")
    engine.step()
    print(f"one step later:          blocks {engine.tables['bob']} read as {engine.read('bob')}")
    engine.end("bob")
    print(f"bob has ended:           {len(engine.free)} of 7 blocks are free")


# %% tags=["answer"]
class Loader(SmallLoader):
    """The small decode side, with the methods for an abort and for the end of a transfer."""

    def abort(self, user: str) -> None:
        """Cancel the request of a user that has asked and not ended."""
        # BEGIN SOLUTION
        # STUB: self.ready.discard(user)
        # STUB: self.give_back(user)
        self.ready.discard(user)
        if user in self.loading:
            self.held.add(user)  # the transfer still writes: keep its blocks until it is over
        else:
            self.give_back(user)
        # END SOLUTION

    def loaded(self, user: str) -> None:
        """Handle the end of this user's transfer."""
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
# The first version of vLLM's repair held the blocks of every request that was aborted in that state. The review found a leak: if the transfer has
# arrived and the scheduler has not yet processed it, no later message arrives. The course's version is `RemoteKVs.release` in
# `phase4_scheduler/features/kv_transfer/scheduler.py`. If the prefill node never reports the end of a transfer, for example because the request was
# aborted there as well, the blocks are never freed: vLLM's issue 46283 (https://github.com/vllm-project/vllm/issues/46283) on its push mode.
# A lease, which ends at a fixed time, prevents this.
