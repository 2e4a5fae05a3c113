"""Grader of the debugging lab: where does each token go, and where did the broken copy put it?"""

from collections.abc import Callable, Sequence

from exercises.grading import Diagnoses, Exercise, NotYet, guard
from exercises.judging.judge import judge

Step = Callable[[list[int], int], int]
Call = tuple[list[int], int]  # the tokens of a step, the place of the first


def broken_generate(step: Step, prompt_ids: Sequence[int], max_new_tokens: int) -> list[int]:
    """The copy with the bug, as in the notebook."""
    new, offset, answer = list(prompt_ids), 0, []
    token = step(new, offset)
    offset += len(new)
    while True:
        answer.append(token)
        if len(answer) == max_new_tokens:
            return answer
        offset += len(new)
        new = [token]
        token = step(new, offset)


def generate_at(place: Callable[[int, int], int]) -> Callable:
    """A loop that computes answer token i after a prompt of n tokens at `place(n, i)`."""

    def generate(step: Step, prompt_ids: Sequence[int], max_new_tokens: int) -> list[int]:
        answer = [step(list(prompt_ids), 0)]
        for i in range(max_new_tokens - 1):
            answer.append(step([answer[-1]], place(len(prompt_ids), i)))
        return answer

    return generate


def _everything_again(step: Step, prompt_ids: Sequence[int], max_new_tokens: int) -> list[int]:
    ids, answer = list(prompt_ids), []
    for _ in range(max_new_tokens):
        answer.append(step(list(ids), 0))
        ids.append(answer[-1])
    return answer


def _prompt_as_well(step: Step, prompt_ids: Sequence[int], max_new_tokens: int) -> list[int]:
    return [*prompt_ids, *generate_at(lambda n, i: n + i)(step, prompt_ids, max_new_tokens)]


def _one_step_more(step: Step, prompt_ids: Sequence[int], max_new_tokens: int) -> list[int]:
    return generate_at(lambda n, i: n + i)(step, prompt_ids, max_new_tokens + 1)[:-1]


def recorded(generate: Callable) -> Callable[[list[int], int], tuple[list[Call], list[int]]]:
    """What `generate` asks of the model, and its answer. The model is arithmetic: each token has its influence."""

    def run(prompt_ids: list[int], max_new_tokens: int) -> tuple[list[Call], list[int]]:
        calls: list[Call] = []

        def step(tokens: list[int], first: int) -> int:
            calls.append((list(tokens), first))
            if len(calls) > 4 * max_new_tokens + 4:
                raise RuntimeError(f"{len(calls)} steps for {max_new_tokens} tokens: the loop does not end")
            return (31 * sum(tokens) + 7 * first + 11 * len(calls)) % 97

        answer = guard(
            generate, step, list(prompt_ids), max_new_tokens, tried=_show(prompt_ids, max_new_tokens)
        )
        return calls, answer

    return run


def _show(prompt_ids: Sequence[int], max_new_tokens: int) -> str:
    return f"generate(step, {list(prompt_ids)}, {max_new_tokens})"


def _steps(got: tuple[list[Call], list[int]], want: tuple[list[Call], list[int]]) -> tuple[str, str]:
    """One step a line, and what is wrong with its place; then the answer."""

    def lines(run: tuple[list[Call], list[int]], other: tuple[list[Call], list[int]], note: bool) -> str:
        (calls, answer), (right, _) = run, other
        out = []
        for n, (tokens, first) in enumerate(calls):
            line = f"step {n}: tokens {tokens} at {first}"
            if note and n >= len(right):
                line += "  <- a step too many"
            elif note and len(tokens) != len(right[n][0]):
                line += f"  <- {len(tokens)} tokens instead of {len(right[n][0])}"
            elif note and first != right[n][1]:
                line += f", should be {right[n][1]}"
            out.append(line)
        if len(out) > 8:
            out[8:] = [f"... {len(out)} steps"]
        return "\n".join([*out, f"answer: {answer}"])

    return lines(got, want, True), lines(want, want, False)


REPAIRS = {
    "lab-still-jumps": recorded(broken_generate),
    "lab-moves-by-the-prompt": recorded(generate_at(lambda n, i: n * (i + 1))),
    "lab-stands-still": recorded(generate_at(lambda n, i: n)),
    "lab-one-too-far": recorded(generate_at(lambda n, i: n + 1 + i)),
    "lab-one-behind": recorded(generate_at(lambda n, i: n - 1 + i)),
    "lab-starts-again": recorded(generate_at(lambda n, i: i)),
    "lab-everything-again": recorded(_everything_again),
    "lab-prompt-in-the-answer": recorded(_prompt_as_well),
    "lab-one-step-too-many": recorded(_one_step_more),
}
SAYS = Diagnoses.of("p2d1_words_after_a_gap")
CAUSES = {
    "cause-is-the-right-place": lambda n, i: n + i,
    "cause-jumps-each-time": lambda n, i: n * (i + 2),
    "cause-everything-doubled": lambda n, i: 2 * (n + i),
    "cause-one-too-far": lambda n, i: 2 * n + i + 1,
    "cause-one-behind": lambda n, i: 2 * n + i - 1,
}


def grade_lab(generate: Callable, wrong_place: Callable) -> None:
    right = recorded(generate_at(lambda n, i: n + i))
    cases = [
        ([5, 6, 7, 8, 9, 10], 5),
        ([3], 4),
        ([3, 1, 4, 1], 1),
        (list(range(20)), 7),
        ([8, 8], 2),
        ([2, 7], 12),
    ]
    judge(recorded(generate), cases, right, REPAIRS, SAYS, show=_show, present=_steps)
    prompt = [4, 5, 6]
    guard(generate, lambda tokens, first: 1, prompt, 3, tried=_show(prompt, 3))
    if prompt != [4, 5, 6]:
        says = "The list that the caller gave has changed: the answer was appended to it."
        raise NotYet("lab-changes-the-prompt", says, _show([4, 5, 6], 3), prompt, [4, 5, 6])
    judge(
        wrong_place,
        [(6, 0), (6, 1), (6, 2), (1, 0), (1, 3), (100, 5), (9, 9), (512, 0)],
        lambda n, i: 2 * n + i,
        CAUSES,
        SAYS,
        show=lambda n, i: f"wrong_place({n}, {i})",
    )


EXERCISES = [
    Exercise("p2d1_words_after_a_gap", ("generate", "wrong_place"), grade_lab),
]
