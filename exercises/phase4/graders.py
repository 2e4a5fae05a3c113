"""The exercises of phase 4: what each asks for, and which grader judges it. Their hints are in hints.txt."""

from exercises.grading import Exercise
from exercises.phase4.grade_batching import grade_static_continuous
from exercises.phase4.grade_chunks import grade_chunks
from exercises.phase4.grade_drafts import grade_copied_drafts, grade_verified_drafts
from exercises.phase4.grade_lab import grade_names
from exercises.phase4.grade_latency import grade_percentiles
from exercises.phase4.grade_littles_law import grade_littles_law
from exercises.phase4.grade_preemption import grade_preemption
from exercises.phase4.grade_queries import grade_queries
from exercises.phase4.grade_router import grade_router
from exercises.phase4.grade_step import grade_one_step
from exercises.phase4.grade_temperature_lab import grade_temperature

EXERCISES = [
    Exercise("p4e1_one_step", ("share_budget",), grade_one_step),
    Exercise("p4e2_preemption", ("step",), grade_preemption),
    Exercise("p4e3_chunks", ("tokens_now", "admit"), grade_chunks),
    Exercise("p4e4_static_continuous", ("static", "continuous"), grade_static_continuous),
    Exercise("p4e5_percentiles_goodput", ("percentile", "goodput"), grade_percentiles),
    Exercise(
        "p4e6_two_causes",
        ("too_few_seats_for_all", "one_at_a_time", "cache_too_small", "nothing_alike"),
        grade_queries,
    ),
    Exercise("p4e7_copied_drafts", ("propose",), grade_copied_drafts),
    Exercise("p4e8_verified_drafts", ("verify",), grade_verified_drafts),
    Exercise("p4e9_littles_law", ("in_system", "running", "knee"), grade_littles_law),
    Exercise("p4e10_router", ("Router",), grade_router),
    Exercise("p4d1_names_without_blocks", ("preempt_one", "lying"), grade_names, seconds=20.0),
    Exercise("p4d2_temperature_from_nowhere", ("expand_batch_to_tokens", "colleague"), grade_temperature),
]
