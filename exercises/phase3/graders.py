"""The exercises of phase 3: what each asks for, its hints, and which grader judges it."""

from __future__ import annotations

from exercises.grading import Exercise
from exercises.phase3.grade_attention import grade_attention
from exercises.phase3.grade_blocks import grade_allocator, grade_slots
from exercises.phase3.grade_copies import grade_copy_on_write
from exercises.phase3.grade_eviction import grade_free_list
from exercises.phase3.grade_lab import grade_lab
from exercises.phase3.grade_prefix import grade_prefix

EXERCISES = [
    Exercise(
        name="p3e1_allocate",
        asks=("Allocator",),
        grade=grade_allocator,
        hints=(
            "Two books have to agree at all times: `ref_count`, and `free`. A block is in `free` exactly while its count "
            "is 0. Which of the three methods change both?",
            "take:       count 0 -> 1, leaves the free list\n"
            "share:      count n -> n + 1\n"
            "give_back:  count n -> n - 1 for each block; at 0 it joins the free list",
            "take:\n"
            "    if nothing is free: raise MemoryError\n"
            "    block = first of the free list; its count becomes 1; return it\n"
            "share:\n"
            "    count of the block + 1\n"
            "give_back:\n"
            "    if the count of any of the blocks is 0:\n"
            "        raise ValueError (before changing anything)\n"
            "    for each block: count - 1; if it is 0 now, append it to the free list",
        ),
    ),
    Exercise(
        name="p3e2_block_table",
        asks=("slots",),
        grade=grade_slots,
        hints=(
            "A page table turns an address into a page and an offset. Here the address is the token's number in its "
            "request, and the page is a block.",
            "slot(t) = block_table[t // block_size] * block_size + t % block_size",
            "for t from first to first + num_tokens - 1:\n"
            "    logical = t // block_size         which of the request's blocks\n"
            "    offset = t % block_size           which place in it\n"
            "    physical = block_table[logical]   where that block lies\n"
            "    slot = physical * block_size + offset",
        ),
    ),
    Exercise(
        name="p3e3_prefix",
        asks=("block_names", "find_prefix"),
        grade=grade_prefix,
        hints=(
            "The name of a block needs the name of the block before it; for the first block that is b''. And to find "
            "something, walk from the first block on: what do you do at the first name that is not there?",
            "name[i] = hash_block(name[i - 1], tokens of block i)\n"
            "only for full blocks\n"
            "at most (len(token_ids) - 1) // block_size blocks may be used",
            "block_names:\n"
            "    parent = b''\n"
            "    for each full block: parent = hash_block(parent, its tokens); append parent\n"
            "find_prefix:\n"
            "    for each name of the first (len - 1) // block_size blocks:\n"
            "        if it is not in cached: stop\n"
            "        append cached[name]",
        ),
    ),
    Exercise(
        name="p3e4_eviction",
        asks=("FreeList",),
        grade=grade_free_list,
        hints=(
            "The list is a queue: front is forgotten next, back is forgotten last. Nothing has to be measured or sorted. "
            "What matters is only at which end, and in which order, blocks come in.",
            "table = [named blocks] + [nameless blocks]\n"
            "new list = reversed(nameless) + old list + reversed(named)",
            "take:       remove the first one, return it\n"
            "hit:        remove this one, wherever it is\n"
            "give_back:\n"
            "    named, nameless = table[:num_full], table[num_full:]\n"
            "    put reversed(nameless) in front, as a whole\n"
            "    put reversed(named) behind",
        ),
    ),
    Exercise(
        name="p3e5_copy_on_write",
        asks=("fork", "make_room"),
        grade=grade_copy_on_write,
        hints=(
            "`num_tokens` tokens are there, so the next one is token number `num_tokens`. In which block of the table is "
            "its place? There are three cases: no such block yet, a block of your own, a block that others read.",
            "at = num_tokens // block_size\n"
            "at == len(table)               -> a new block\n"
            "ref_count[table[at]] == 1      -> write in place\n"
            "ref_count[table[at]] > 1       -> a new block, the content copied,\n"
            "                                  one reader less of the old one",
            "fork:\n"
            "    for each block of the table: count + 1\n"
            "    return a copy of the table\n"
            "make_room:\n"
            "    at = num_tokens // block_size\n"
            "    if at == len(table): append pool.take()\n"
            "    else if the count of table[at] is over 1:\n"
            "        new = pool.take(); pool.copy(table[at], new)\n"
            "        the old block's count - 1; table[at] = new",
        ),
    ),
    Exercise(
        name="p3e6_paged_attention",
        asks=("paged_attention",),
        grade=grade_attention,
        hints=(
            "Keep three things while you walk: the largest score so far, the sum of weights so far, the weighted values so "
            "far. When a larger score turns up, two of them were measured against the wrong maximum.",
            "score = (q . k) / sqrt(head_dim)\n"
            "shrink = exp(old maximum - new maximum)\n"
            "total = total * shrink + sum of exp(score - new maximum)\n"
            "acc   = acc * shrink + sum of exp(score - new maximum) * v\n"
            "out   = acc / total",
            "largest, total, acc = -infinity, 0, zeros\n"
            "for logical = 0, 1, ... up to context_len / block_size, rounded up:\n"
            "    physical = block_table[logical]\n"
            "    n = how many of this block's places belong to the request\n"
            "    scores = k_cache[physical, :n] @ q / sqrt(head_dim)\n"
            "    new = the larger of largest and scores.max()\n"
            "    scale total and acc down by exp(largest - new)\n"
            "    weights = exp(scores - new); add them to total,\n"
            "    and weights @ v_cache[physical, :n] to acc\n"
            "    largest = new\n"
            "return acc / total",
        ),
    ),
    Exercise(
        name="p3d1_freed_and_read",
        asks=("Manager", "cause"),
        grade=grade_lab,
        hints=(
            "Write down, after each line of the symptom, which blocks alice's and bob's tables list, what the counts are, "
            "and what is in `free`. From which line on do they not agree any more?",
            "At one point a block stands in a table and in `free` at once.\n"
            "for every block: ref_count[block] == number of tables that list it\n"
            "free == the blocks whose count is 0\n"
            "Which of the two does `remember` break, and for which block?",
            "Look at what `remember` does with the user's own copy.\n"
            "for each full block i of the user, with its name:\n"
            "    same = what the cache holds under this name\n"
            "           (enter the user's own block if there is nothing)\n"
            "    if that is another block than the user's:\n"
            "        point to `same`, and count it\n"
            "        give back the user's own\n"
            "        let table[i] say `same`",
        ),
    ),
]
