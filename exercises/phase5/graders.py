"""The exercises of phase 5: what each asks for, and which grader judges it. Their hints are in hints.txt."""

from exercises.grading import Exercise
from exercises.phase5.grade_benchmark import grade_benchmark
from exercises.phase5.grade_decode import grade_decode
from exercises.phase5.grade_lab import grade_lab
from exercises.phase5.grade_loader_lab import grade_loader_lab
from exercises.phase5.grade_merge import grade_merge
from exercises.phase5.grade_pages import grade_pages
from exercises.phase5.grade_split import grade_split
from exercises.phase5.grade_transfer import grade_transfer

EXERCISES = [
    Exercise("p5e1_paged_decode", ("paged_decode",), grade_decode, seconds=40.0),
    Exercise("p5e2_merge_splits", ("merge",), grade_merge),
    Exercise("p5e3_page_ids", ("tile_places", "walk"), grade_pages),
    Exercise("p5e4_lying_benchmark", ("floor_us", "what_is_wrong"), grade_benchmark),
    Exercise("p5e5_split_block", ("cut", "run"), grade_split),
    Exercise("p5e6_block_transfer", ("load_blocks", "num_computed"), grade_transfer),
    Exercise("p5d1_words_of_the_departed", ("Runner", "cause"), grade_lab),
    Exercise("p5d2_blocks_still_written", ("Loader", "cause"), grade_loader_lab),
]
