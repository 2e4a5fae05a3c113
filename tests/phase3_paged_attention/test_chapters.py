"""The steps that the chapters show of alice and bob are those of the block manager."""

from labkit.models import find_model
from labkit.paths import ROOT
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase3_paged_attention.paging import BlockManager, BlockTable, hash_block
from phase3_paged_attention.sharing import ForkingBlockManager

CHAPTERS = ROOT / "phase3_paged_attention" / "chapters"
OPENING = (
    "Once upon a time there was a king who had a daughter, and she was so beautiful that the sun itself, "
    "which has seen so much, was "
)
ALICE = OPENING + "astonished whenever it shone in her face"
BOB = OPENING + "silent before her and went behind a cloud"
TOK = BPETokenizer.from_file(find_model("tales") / "tokenizer.json")


def chapter(name: str) -> str:
    return (CHAPTERS / name).read_text(encoding="utf-8")


def prose(name: str) -> str:
    """A chapter with its lines joined."""
    return " ".join(chapter(name).split())


def free(manager: BlockManager) -> str:
    return " ".join(str(block.block_id) for block in manager.allocator)


def ids(table: BlockTable) -> str:
    return " ".join(map(str, table.block_ids))


def test_the_table_of_alice_fills_up_as_the_chapter_says():
    manager, alice, bob = BlockManager(9, 16, enable_prefix_caching=False), BlockTable(), BlockTable()
    rows = [("the engine starts", "", "", free(manager))]
    manager.allocate(bob, range(20), 20)
    rows.append(("`bob` arrives, 20 tokens", ids(bob), "", free(manager)))
    manager.allocate(alice, range(37), 37)
    rows.append(("`alice` arrives, 37 tokens", ids(bob), ids(alice), free(manager)))
    manager.free(bob)
    rows.append(("`bob` finishes", "", ids(alice), free(manager)))
    manager.allocate(alice, range(49), 49)
    rows.append(("`alice` has generated 12 tokens, 49 in all", "", ids(alice), free(manager)))
    text = chapter("02-blocks.md")
    for row in rows:
        assert "|" + "|".join(f" {cell} ".replace("  ", " ") for cell in row) + "|\n" in text, row
    text = prose("02-blocks.md")
    assert "slot $5 \\cdot 16 + 4 = 84$" in text and alice.block_ids[36 // 16] * 16 + 36 % 16 == 84
    manager.allocate(alice, range(100), 100)
    assert f"The table is then `{ids(alice)}`." in text


def test_hashes_hits_and_evictions_are_those_of_the_chapter():
    text, alice_ids, bob_ids = chapter("04-prefix-caching.md"), TOK.encode(ALICE), TOK.encode(BOB)
    assert (len(alice_ids), len(bob_ids)) == (37, 38)
    assert alice_ids[:30] == bob_ids[:30] and alice_ids[30] != bob_ids[30]
    for prompt in (ALICE, ALICE.replace("king", "queen")):
        tokens = TOK.encode(prompt)
        first = hash_block(b"", tokens[:16])
        assert (
            f"{first.hex()[:8]}... ------------> SHA-256 ---- {hash_block(first, tokens[16:32]).hex()[:8]}..."
            in text
        )

    manager, alice, bob, long = BlockManager(9), BlockTable(), BlockTable(), BlockTable()
    states = []

    def keep(*tables: BlockTable) -> None:
        known = " ".join(str(i) for i in sorted(block.block_id for _, block in manager.prefix_cache))
        states.append([*(ids(table) for table in tables), known, free(manager)])

    manager.allocate(alice, alice_ids, 37)
    keep(alice, bob)
    prefix = manager.match_prefix(bob, bob_ids)
    manager.allocate(bob, bob_ids, 38, prefix)
    keep(alice, bob)
    manager.free(alice)
    keep(alice, bob)
    manager.free(bob)
    keep(alice, bob)
    rows = [
        line.strip("| ").split("|")
        for line in text.splitlines()
        if line.startswith("| ") and line[2].isdigit()
    ]
    assert [[cell.strip() for cell in row[1:]] for row in rows[:4]] == states
    before = states[-1][-1].split()

    manager.allocate(long, range(5000, 5100), 100)
    assert [str(i) for i in long.block_ids] == before[:7] and free(manager) == "1"
    assert len(manager.match_prefix(BlockTable(), alice_ids)) == 1
    two = BlockManager(9)
    two.allocate(BlockTable(), alice_ids[:32], 32)
    assert len(two.match_prefix(BlockTable(), alice_ids[:32])) == 1  # never the block with the last token


def test_the_worked_problem_of_the_prefix_chapter():
    manager, alice, bob, again = BlockManager(9), BlockTable(), BlockTable(), BlockTable()
    alice_ids, bob_ids = TOK.encode(ALICE), TOK.encode(BOB)
    manager.allocate(alice, alice_ids, 37)
    manager.allocate(bob, bob_ids, 38, manager.match_prefix(bob, bob_ids))
    manager.free(alice)
    manager.free(bob)
    found = manager.match_prefix(again, alice_ids)
    assert [block.block_id for block in found] == [1, 2]
    manager.allocate(again, alice_ids + [1] * 20, 57, found)
    assert again.block_ids == [1, 2, 5, 3]
    assert {block.block_id for _, block in manager.prefix_cache} == {1, 2, 4, 5}


def test_two_of_three_answers_copy_a_block():
    manager, alice = ForkingBlockManager(num_blocks=9), BlockTable()
    manager.reserve(alice, 37)
    answers = [alice, manager.fork(alice), manager.fork(alice)]
    for table in answers:
        manager.reserve(table, 38)
    assert f"The tables are then `{ids(answers[0])}`, `{ids(answers[1])}` and `{ids(answers[2])}`:" in prose(
        "06-fork-swap-offload.md"
    )
    assert len(manager.take_copies()) == 2
