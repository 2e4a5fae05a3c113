"""The exercises of phase 3: what each asks for, and which grader judges it. Their hints are in hints.txt."""

from exercises.grading import Exercise
from exercises.phase3.grade_attention import grade_attention
from exercises.phase3.grade_blocks import grade_allocator, grade_slots
from exercises.phase3.grade_copies import grade_copy_on_write
from exercises.phase3.grade_eviction import grade_free_list
from exercises.phase3.grade_lab import grade_lab
from exercises.phase3.grade_prefix import grade_prefix

EXERCISES = [
    Exercise("p3e1_allocate", ("Allocator",), grade_allocator),
    Exercise("p3e2_block_table", ("slots",), grade_slots),
    Exercise("p3e3_prefix", ("block_names", "find_prefix"), grade_prefix),
    Exercise("p3e4_eviction", ("FreeList",), grade_free_list),
    Exercise("p3e5_copy_on_write", ("fork", "make_room"), grade_copy_on_write),
    Exercise("p3e6_paged_attention", ("paged_attention",), grade_attention),
    Exercise("p3d1_freed_and_read", ("Manager", "cause"), grade_lab),
]
