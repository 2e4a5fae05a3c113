"""Structured output: the grammar allows tokens, and the model chooses among them.

A program that calls a model wants an answer that it can parse: JSON that matches a schema, one of three words, the arguments
of a function. A request in the prompt works often. A mask works always: before each token is sampled, the logits of
all tokens with which the answer could no longer match are set to minus infinity.

You will see: how much of the vocabulary each token of an answer leaves, what a mask costs, and what it does not guarantee.

Sources: Willard and Louf, "Efficient Guided Generation for Large Language Models" (2023); vllm/v1/structured_output.
"""

from labkit.lab import Lab, run_lab
from phase4_scheduler.story.structured_story import many_answers, token_by_token


def story(lab: Lab) -> None:
    engine = token_by_token(lab)
    many_answers(lab, engine)


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("device", "dtype", "model", "seed", "quick"), argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
