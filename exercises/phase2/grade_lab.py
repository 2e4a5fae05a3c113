"""Grader of the debugging lab: where does each token go, and where did the broken copy put it?"""

from collections.abc import Callable

from exercises.judging.judge import Exercise

Step = tuple[list[int], int]  # the tokens of a step, the place of the first


def recorded(generate: Callable, prompt_ids: list[int], max_new_tokens: int) -> tuple[list[int], list[Step]]:
    """The answer, and what `generate` asks of the model. The model is arithmetic: each token has its influence."""
    steps: list[Step] = []

    def step(tokens: list[int], first: int) -> int:
        steps.append((list(tokens), first))
        if len(steps) > 4 * max_new_tokens + 4:
            raise RuntimeError(f"{len(steps)} steps for {max_new_tokens} tokens: the loop does not end")
        return (31 * sum(tokens) + 7 * first + 11 * len(steps)) % 97

    return generate(step, prompt_ids, max_new_tokens), steps


def _steps(got: tuple[list[int], list[Step]], want: tuple[list[int], list[Step]]) -> tuple[str, str]:
    """One step a line, with a mark where it is another one; then the answer."""

    def lines(answer: list[int], steps: list[Step], other: list[Step]) -> str:
        out = [
            f"step {n}: tokens {tokens} at {first}"
            + "  <- another step" * ([(tokens, first)] != other[n : n + 1])
            for n, (tokens, first) in enumerate(steps)
        ]
        if len(out) > 8:
            out[8:] = [f"... {len(out)} steps"]
        return "\n".join([*out, f"answer: {answer}"])

    return lines(*got, want[1]), lines(*want, want[1])


OFFSET = "offset += len(new)  # once per step, before `new` is replaced"
NEW, PLACE = "new = [token]", "2 * prompt_length + i"
ENDS = "        if len(answer) == max_new_tokens:\n            return answer"
LAB = Exercise(
    "p2d1_words_after_a_gap",
    generate={
        "lab-still-jumps": {OFFSET: "offset += len(new) if answer else 2 * len(new)"},
        "lab-moves-by-the-prompt": {OFFSET: "offset += len(prompt_ids)"},
        "lab-stands-still": {OFFSET: "offset = len(prompt_ids)"},
        "lab-one-too-far": {OFFSET: "offset = len(prompt_ids) + len(answer) + 1"},
        "lab-one-behind": {OFFSET: "offset = len(prompt_ids) + len(answer) - 1"},
        "lab-starts-again": {OFFSET: "offset = len(answer)"},
        "lab-everything-again": {OFFSET: "pass", NEW: "new = [*new, token]"},
        "lab-prompt-in-the-answer": {"return answer": "return list(prompt_ids) + answer"},
        "lab-one-step-too-many": {
            f"        answer.append(token)\n{ENDS}": f"{ENDS}\n        answer.append(token)"
        },
    },
    wrong_place={
        "cause-is-the-right-place": {PLACE: "prompt_length + i"},
        "cause-jumps-each-time": {PLACE: "(i + 2) * prompt_length"},
        "cause-everything-doubled": {PLACE: "2 * prompt_length + 2 * i"},
        "cause-one-too-far": {PLACE: "2 * prompt_length + 1 + i"},
        "cause-one-behind": {PLACE: "2 * prompt_length - 1 + i"},
    },
)


@LAB.grader
def grade_lab(generate: Callable, wrong_place: Callable) -> None:
    cases = [
        ([5, 6, 7, 8, 9, 10], 5),
        ([3], 4),
        ([3, 1, 4, 1], 1),
        (list(range(20)), 7),
        ([8, 8], 2),
        ([2, 7], 12),
    ]
    LAB.judge("generate", generate, cases, play=recorded, present=_steps)
    LAB.judge(
        "wrong_place", wrong_place, [(6, 0), (6, 1), (6, 2), (1, 0), (1, 3), (100, 5), (9, 9), (512, 0)]
    )
