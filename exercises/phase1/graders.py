"""The exercises of phase 1: what each asks for, and which grader judges it. Their hints are in hints.txt."""

from exercises.grading import Exercise
from exercises.phase1.grade_chat import grade_chat
from exercises.phase1.grade_encode import grade_encode
from exercises.phase1.grade_header import grade_header
from exercises.phase1.grade_kv_bytes import grade_kv_bytes
from exercises.phase1.grade_pairs import grade_pairs
from exercises.phase1.grade_streaming import grade_streaming

EXERCISES = [
    Exercise("p1e1_pairs", ("count_pairs", "merge"), grade_pairs),
    Exercise("p1e2_encode", ("encode",), grade_encode),
    Exercise("p1e3_streaming", ("Streamer",), grade_streaming),
    Exercise("p1e4_header", ("read_header",), grade_header),
    Exercise("p1e5_kv_bytes", ("kv_bytes", "users_that_fit"), grade_kv_bytes),
    Exercise("p1e6_chat", ("chat_ids",), grade_chat),
]
