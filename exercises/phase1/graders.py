"""The exercises of phase 1, in the order of the course."""

from __future__ import annotations

from exercises.grading import Exercise
from exercises.phase1.grade_encode import grade_encode
from exercises.phase1.grade_header import grade_header
from exercises.phase1.grade_kv_bytes import grade_kv_bytes
from exercises.phase1.grade_pairs import grade_pairs
from exercises.phase1.grade_streaming import grade_streaming

EXERCISES = [
    Exercise(
        name="p1e1_pairs",
        asks=("count_pairs", "merge"),
        grade=grade_pairs,
        hints=(
            "Each token but the last has one right neighbour. When you merge, how far do you move on afterwards: by one "
            "token or by two?",
            "The pairs of t are (t[0], t[1]), (t[1], t[2]), ..., (t[n-2], t[n-1]): n - 1 of them.",
            "merge: i = 0; while i < n: if tokens i and i+1 are the pair, append new_id and add 2 to i; "
            "otherwise append token i and add 1 to i.",
        ),
    ),
    Exercise(
        name="p1e2_encode",
        asks=("encode",),
        grade=grade_encode,
        hints=(
            "Before every join look at all neighbours of the whole word, not only at those on the way.",
            "Next join: the place i with the smallest (ranks[parts[i] + parts[i+1]], i), among those whose joined bytes "
            "are in the table.",
            "parts = single bytes; repeat: collect (rank, i) of all joins possible; none: stop; i of the smallest: "
            "replace parts[i] and parts[i+1] by the two joined. At the end the rank of each part.",
        ),
    ),
    Exercise(
        name="p1e3_streaming",
        asks=("Streamer",),
        grade=grade_streaming,
        hints=(
            "Keep what cannot be shown yet in self.waiting, and put it before the bytes of the next token.",
            "A first byte tells how long its character is: C2 to DF two bytes, E0 to EF three, F0 to F4 four. "
            "80 to BF only ever go on. A strict decode raises UnicodeDecodeError, whose start, end and reason say where "
            "and why.",
            "push: try to decode waiting + token strictly. On an error: what stands before error.start is certain. If "
            'the reason is "unexpected end of data", the rest waits; otherwise put a � for start to end, and try again '
            "with what follows. finish: decode what waits with errors='replace'.",
        ),
    ),
    Exercise(
        name="p1e4_header",
        asks=("read_header",),
        grade=grade_header,
        hints=(
            "How many bytes stand before the first number of the first tensor? Both the length and the header do.",
            "N = struct.unpack('<Q', data[:8])[0]; the data begins at 8 + N; a tensor takes 8 + N + first to 8 + N + end.",
            "Fewer than 8 bytes, or 8 + N more than the file: ValueError. entries = json.loads(data[8 : 8 + N]); for each "
            "but __metadata__: 0 <= first <= end <= len(data) - 8 - N, or ValueError; then note format, shape and places.",
        ),
    ),
    Exercise(
        name="p1e5_kv_bytes",
        asks=("kv_bytes", "users_that_fit"),
        grade=grade_kv_bytes,
        hints=(
            "Which heads are stored, and what if the config does not name them? Then: which bytes of the card are left?",
            "2 x layers x KV heads x head size x bytes a number; users = (card - weights) / (bytes a token x tokens), "
            "rounded down and never below 0.",
            "kv_heads = config.get('num_key_value_heads', query heads); head_dim = config.get('head_dim', width // query "
            "heads); users = max(0, card - weights) // (bytes_per_token * tokens).",
        ),
    ),
]
