"""The exercises of phase 2: what each asks for, and which grader judges it. Their hints are in hints.txt."""

from exercises.grading import Exercise
from exercises.phase2.grade_attention import grade_grouped, grade_head
from exercises.phase2.grade_cache import grade_cache
from exercises.phase2.grade_family import grade_family
from exercises.phase2.grade_figures import grade_top_p, grade_ttft
from exercises.phase2.grade_lab import grade_lab
from exercises.phase2.grade_mask import grade_mask
from exercises.phase2.grade_quantization import grade_int4_groups, grade_outlier
from exercises.phase2.grade_rotary import grade_rotary
from exercises.phase2.grade_tensors import grade_tensors

EXERCISES = [
    Exercise("p2e0_tensors", ("next_probabilities",), grade_tensors),
    Exercise("p2e1_causal_mask", ("may_see",), grade_mask),
    Exercise("p2e2_one_head", ("one_head",), grade_head),
    Exercise("p2e3_grouped", ("grouped_attention",), grade_grouped),
    Exercise("p2e4_rotary", ("rotate",), grade_rotary),
    Exercise("p2e5_cache", ("Cache",), grade_cache),
    Exercise("p2e6_top_p", ("keep_top_p",), grade_top_p),
    Exercise("p2e7_ttft", ("step_seconds", "tokens_for_free"), grade_ttft),
    Exercise("p2e8_int4_groups", ("pack", "unpack"), grade_int4_groups),
    Exercise("p2e9_outlier", ("find_outlier", "mend"), grade_outlier),
    Exercise("p2e10_family", ("choices",), grade_family),
    Exercise("p2d1_words_after_a_gap", ("generate", "wrong_place"), grade_lab),
]
