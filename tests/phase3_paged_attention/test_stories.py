"""What the stories are told with: words as memory, a walk by hand, and stopwatches."""

import numpy as np
import pytest
import torch

from phase3_paged_attention.story import paged_attention_by_hand as by_hand
from phase3_paged_attention.story.allocator_timing import links_changed
from phase3_paged_attention.story.word_memory import WordMemory


def test_the_memory_of_words_reads_back_what_was_said():
    memory = WordMemory(12, 4, num_swap_blocks=3)
    one = memory.admit("one", "a b c d e f")
    two = memory.admit("two", "a b c d x")
    memory.say(one, "g h i")
    three = memory.fork(two, "three")
    memory.say(two, "y")
    memory.say(three, "z")
    assert memory.read(one) == "a b c d e f g h i"
    assert (memory.read(two), memory.read(three)) == ("a b c d x y", "a b c d x z")
    assert memory.admit("long", " ".join("abcdefghijklmnopqrstuvwxyz" * 2)) is None
    assert "| a " in memory.draw_table(two) and "ref_count 3" in memory.draw_table(two)


def test_the_walk_is_plain_softmax():
    caches = [by_hand.scatter(rows, [3, 1, 4], 2, 6) for rows in (by_hand.KEYS, by_hand.VALUES)]
    visits = by_hand.walk([1.0, 2.0], *caches, [3, 1, 4], 5, 0.7)
    weights = torch.tensor([0.7 * s for s in (1, 3, 2, 5, 0)], dtype=torch.float64).softmax(0)
    expected = weights @ torch.tensor(by_hand.VALUES, dtype=torch.float64)
    np.testing.assert_allclose([a / visits[-1].total for a in visits[-1].acc], expected, rtol=1e-12)
    assert [v.physical for v in visits] == [3, 3, 1, 1, 4]


@pytest.mark.parametrize("num_blocks", [10, 5000])
def test_taking_a_block_out_touches_its_two_neighbours_only(num_blocks):
    assert links_changed(num_blocks) == 3
