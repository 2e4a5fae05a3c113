"""The chapters of block_manager_lab.py: what happens to sixteen blocks when five requests use them."""

from labkit.lab import Lab
from phase1_tokens_embeddings.weights import GB, SHAPES, kv_per_token
from phase3_paged_attention.paging import BlockTable
from phase3_paged_attention.story.word_memory import WordMemory

SYSTEM = "You are a teller of very old tales"  # eight words: two blocks
LONG = (
    "Far beyond the last hill a tired giant kept seven grey geese in one small iron cage and every night "
    "they sang"
)


def tables_fill_up(lab: Lab, memory: WordMemory) -> None:
    lab.title("A table fills up")
    alice = memory.admit("alice", "Once upon a time there lived")
    bob = memory.admit("bob", "In the deep forest stood a")
    for one, two in zip(["a", "king", "who"], ["house", "of", "glass"]):
        memory.say(alice, one)
        memory.say(bob, two)
    lab.predict(
        claim="block-table",
        question="Alice's prompt has 6 words, then Bob's as well; then each writes 3 more in turn. Alice's blocks",
        predicted=[1, 2, 5],
        measured=alice.table.block_ids,
        note="Blocks 1 and 2 hold her prompt, 3 and 4 his. At her 9th word a block is full and the next free "
        "one is 5. Neighbours in her text, apart in memory: nothing was reserved.",
    )
    lab.show(memory.draw_table(alice) + "\n\n" + memory.draw_table(bob))


def share_a_prompt(lab: Lab, memory: WordMemory) -> None:
    lab.title("Two requests share a prompt")
    carol = memory.admit("carol", f"{SYSTEM} about a fox")
    before = memory.manager.stats.hit_tokens
    dave = memory.admit("dave", f"{SYSTEM} about two brothers")
    found = memory.manager.stats.hit_tokens - before
    alone = memory.manager.match_prefix(BlockTable(), memory.ids(SYSTEM.split()))
    lab.predict(
        claim="prefix-hit",
        question="Carol and Dave begin with the same 8 words. How many does Dave find in the cache? And how many "
        "does a prompt of exactly those 8",
        predicted=[8, 4],
        measured=[found, len(alone) * memory.manager.block_size],
        note="At least one word has to be computed: without it there is nothing to sample the next one from. "
        "Blocks are found whole, so leaving out one word leaves out four.",
    )
    lab.show(memory.draw_table(carol) + "\n\n" + memory.draw_table(dave))
    saved = 99 * 1024 * kv_per_token(SHAPES["llama-3-8b"])
    lab.say(f"""What it saves: 100 users of Llama-3 8B behind one system prompt of 1,024 tokens keep it once
        instead of 100 times. That is {saved / GB:.1f} GB of GPU memory, and 101,376 tokens that need not be computed.""")


def fork_and_write(lab: Lab, memory: WordMemory) -> None:
    lab.title("A fork copies only when it writes")
    carol = next(r for r in memory.readers if r.name == "carol")
    samples = [carol, memory.fork(carol, "carol 2"), memory.fork(carol, "carol 3")]
    lab.say("""Carol wants three answers to one prompt. A fork copies the table and raises the reference
        counts; the blocks stay where they are. Her last block has one free slot, and
        three answers will write into it.""")
    for reader, word in zip(samples, ("who", "with", "and"), strict=True):
        memory.say(reader, word)
    lab.predict(
        claim="fork-copies",
        question="each of the 3 writes a word. How many blocks are copied",
        predicted=len(samples) - 1,
        measured=memory.num_copied["copy"],
        note="The first two copy the block, because others still read it. The third is the last holder and writes "
        f"in place. In all {len({i for r in samples for i in r.table.block_ids})} blocks instead of "
        f"{sum(len(r.table.blocks) for r in samples)}.",
    )
    lab.show("\n\n".join(memory.draw_table(r) for r in samples))


def free_and_evict(lab: Lab, memory: WordMemory) -> None:
    lab.title("Which block is evicted when memory runs short")
    manager = memory.manager
    alice = next(r for r in memory.readers if r.name == "alice")
    before = memory.draw_free_list()
    memory.finish(alice)
    order = [block.block_id for block in manager.allocator]
    lab.predict(
        claim="free-order",
        question="Alice ends. Of her blocks 1 and 2 (full) and 5 (one word), which is used again first? And last",
        predicted=[5, 1],
        measured=[order[0], order[-1]],
        note="Block 5 can never be found again: a block that is not full has no hash. The end of the text is used again "
        "before its beginning, because more requests may share a beginning.",
    )
    lab.show(f"free list before:  {before}\nfree list after:   {memory.draw_free_list()}")
    lab.say("""A number in brackets: free, but its content can still be found. Nothing is erased until its block is
        needed.""")
    memory.admit("frank", LONG)
    again = ["Once", "upon", "a", "time", "there", "lived", "a", "king", "who"]
    found = manager.match_prefix(BlockTable(), memory.ids(again))
    lab.predict(
        claim="evicted",
        question="Frank needs 6 blocks, 7 are free. Alice comes back: how many of her 9 words are still there",
        predicted=4,
        measured=len(found) * manager.block_size,
        note=f"Frank took blocks {' '.join(str(b) for b in memory.readers[-1].table.block_ids)}. The last of them "
        "held the second half of Alice's text; the first half survives.",
    )


def swap(lab: Lab, memory: WordMemory) -> None:
    lab.title("Swapped out and in")
    manager = memory.manager
    frank = memory.readers[-1]
    free = manager.num_free_blocks
    refused = memory.admit("alice", "Once upon a time there lived a king who") is None
    unchanged = manager.num_free_blocks == free
    outcome = "She is refused" if refused else "She is let in"
    counts = "and no count has changed" if unchanged else "and the counts have changed"
    lab.say(f"""Alice needs 3 blocks. One she would find, and {free} is free: the very one. {outcome},
        {counts}. So Frank's blocks move to main memory, and she comes in.""")
    old_text, old_blocks = memory.read(frank), list(frank.table.block_ids)
    manager.swap_out(frank.table)
    alice = memory.admit("alice", "Once upon a time there lived a king who")
    for reader in [alice, *(r for r in memory.readers if r.name.startswith("carol"))]:
        memory.finish(reader)
    manager.swap_in(frank.table)
    memory.say(frank, "softly")
    same = sum(a == b for a, b in zip(old_text.split(), memory.read(frank).split()))
    lab.predict(
        claim="swap",
        question=f"of Frank's {len(old_text.split())} words, how many are unchanged after the swap out and in",
        predicted=len(old_text.split()),
        measured=same,
        note=f"He was in blocks {' '.join(map(str, old_blocks))}, now he is in "
        f"{' '.join(map(str, frank.table.block_ids))}. Only his table had to change.",
    )
    for reader in list(memory.readers):
        memory.finish(reader)
    manager.check_integrity()
    lab.predict(
        claim="all-back",
        question="all requests have ended. Free blocks, of 16",
        predicted=manager.num_blocks - 1,
        measured=manager.num_free_blocks,
        note="Tables, counts and free list agree with each other (check_integrity). A server that lost one block "
        "per request would stop after as many requests as it has blocks.",
    )
    stats, moved = manager.stats, memory.num_copied
    lab.table(
        "What the manager counted",
        ["blocks taken", "words found in the cache", "evicted", "copied", "swapped out", "swapped in"],
        [[stats.taken_blocks, stats.hit_tokens, stats.evicted_blocks, moved["copy"], moved["out"], moved["in"]]],
    )  # fmt: skip
