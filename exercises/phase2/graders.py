"""The exercises of phase 2, in the order of the course."""

from __future__ import annotations

from exercises.grading import Exercise
from exercises.phase2.grade_attention import grade_grouped, grade_head
from exercises.phase2.grade_cache import grade_cache
from exercises.phase2.grade_figures import grade_top_p, grade_ttft
from exercises.phase2.grade_lab import grade_lab
from exercises.phase2.grade_mask import grade_mask
from exercises.phase2.grade_rotary import grade_rotary

EXERCISES = [
    Exercise(
        name="p2e1_causal_mask",
        asks=("may_see",),
        grade=grade_mask,
        hints=(
            "At which position does the first query stand? Not at 0, if there are older tokens.",
            "Query i stands at position M - N + i. It may look at key j if j <= M - N + i.",
            "positions = the numbers M - N to M - 1, as a column; keys = 0 to M - 1, as a row; the answer is keys <= "
            "positions, which torch spreads out to a table.",
        ),
    ),
    Exercise(
        name="p2e2_one_head",
        asks=("one_head",),
        grade=grade_head,
        hints=(
            "Three steps: scores of all queries with all keys, scores to shares, shares to a mixture of values. The mask "
            "belongs between the first two.",
            "scores = q k^T / sqrt(d), an [N, M] table; where the mask is False: minus infinity; softmax over each row; "
            "times v.",
            "scores = q @ k.T / d ** 0.5; scores.masked_fill(~mask, -inf); torch.softmax over dim -1; shares @ v.",
        ),
    ),
    Exercise(
        name="p2e3_grouped",
        asks=("grouped_attention",),
        grade=grade_grouped,
        hints=(
            "How many query heads share one KV head? The first that many use KV head 0.",
            "Query head h uses KV head h // (num_heads // num_kv_heads).",
            "For each h: one_head(q[:, h], k[:, g], v[:, g]) with its g; put the results side by side along dimension 1.",
        ),
    ),
    Exercise(
        name="p2e4_rotary",
        asks=("rotate",),
        grade=grade_rotary,
        hints=(
            "First a table of angles, [N, d/2]: position times speed. The same angles serve all heads.",
            "speed of pair i = theta^(-2i/d), i from 0 to d/2 - 1; the first half of a vector holds the a's, the second half "
            "the b's: (a cos - b sin, b cos + a sin).",
            "angles = positions.float()[:, None] * speeds; cos and sin get a dimension for the heads in the middle; a, b = "
            "the two halves in float32; join both results along the last dimension; back to x.dtype.",
        ),
    ),
    Exercise(
        name="p2e5_cache",
        asks=("Cache",),
        grade=grade_cache,
        hints=(
            "Where do the new tokens of this layer begin? Whose length is it, the sequence's or the layer's?",
            "start = lengths[layer], end = start + N; places start to end - 1 are written, 0 to end - 1 come back.",
            "If end is more than the room: ValueError, before anything is written. Then keys[layer, start:end] = k, the "
            "same for v, lengths[layer] = end, return both up to end.",
        ),
    ),
    Exercise(
        name="p2e6_top_p",
        asks=("keep_top_p",),
        grade=grade_top_p,
        hints=(
            "Sort, from the likeliest down. For each token ask: how much do those before it hold? Is that still less than p?",
            "kept: cumsum - itself < p. Then divide what is kept by its sum.",
            "ordered, places = probs.sort(descending=True); before = ordered.cumsum(-1) - ordered; kept = zeros; "
            "kept[places] = ordered where before < p, else 0; kept / kept.sum().",
        ),
    ),
    Exercise(
        name="p2e7_ttft",
        asks=("step_seconds", "tokens_for_free"),
        grade=grade_ttft,
        hints=(
            "Two times, each without the other. Which of them grows with the number of tokens?",
            "computing = 2 x parameters x tokens / rate; fetching = parameters x bytes / bandwidth; the step takes the "
            "larger. For the second function: at which number of tokens are they equal?",
            "max(2 * P * n / rate, P * size / bandwidth); from 2 * P * n / rate = P * size / bandwidth follows "
            "n = size * rate / (2 * bandwidth).",
        ),
    ),
    Exercise(
        name="p2d1_words_after_a_gap",
        asks=("generate", "wrong_place"),
        grade=grade_lab,
        hints=(
            "Write down len(tokens) and first for the first three steps, with a prompt of 6 tokens. Where is the jump?",
            "After a step the offset should be: where the step began + how many tokens it had. Count how often "
            "`offset += len(new)` runs while `new` is still the prompt.",
            "Repeat: token = step(new, offset); offset += len(new); append token; enough? then return; new = [token]. For "
            "the cause: the prompt's length was added twice, then 1 a step.",
        ),
    ),
]
