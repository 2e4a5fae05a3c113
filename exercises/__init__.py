"""The exercises: one source each, its grader, and what turns the sources into notebooks.

A source, `exercises/phase1/e1_pairs.py`, is a notebook written as plain Python (py:percent). It belongs to the
exercise `p1e1_pairs`. Between the markers stands the solution:

    # %% tags=["answer"]
    def count_pairs(tokens):
        \"\"\"How often each pair of neighbours occurs.\"\"\"
        # BEGIN SOLUTION
        return Counter(zip(tokens, tokens[1:]))
        # END SOLUTION

The student's notebook has `raise NotImplementedError("your turn")` there. For something else than that, say a
planted bug, write the student's lines in the block as comments that begin with `# STUB: `:

        # BEGIN SOLUTION
        # STUB: return order[0]
        return order[-1]
        # END SOLUTION

A block at the left margin (an answer that is a value) leaves a comment `# your turn` and needs a line before it
such as `cause = ...`, so that the name exists.

Four files belong to an exercise:

- `e1_pairs.py`, the source: task, solution, and the way into the engine;
- `e1_pairs.txt`: three hints, and below `# diagnoses` what to say of each mistake (`# diagnoses merge` for one of several answers);
- `grade_bpe.py`, the grader of one subject's exercises: the known mistakes, most of them slips in the solution, and the cases in
  which an answer has to agree with the solution (`exercises/judging/judge.py`);
- `tests/exercises/answers/p1e1_pairs.py`, the bank: right answers that are written differently, and wrong ones that no slip gives.

    EXERCISE = Exercise(
        "p1e1_pairs",
        count_pairs={"pairs-counted-once": {"counts.get(pair, 0) + 1": "1"}, "pairs-wrap-around": ...},
        merge={"merge-keeps-the-second": {"i += 2": "i += 1"}, ...},
    )

    @EXERCISE.grader
    def grade_pairs(count_pairs, merge):
        EXERCISE.judge("count_pairs", count_pairs, [([1, 2, 1, 2],), ([],)])
        EXERCISE.judge("merge", merge, [([1, 2, 1, 2], (1, 2), 9)])

A test makes every slip in the solution and expects its diagnosis. A mistake that no slip gives is a `When`, seen by the result.
Classes are judged by scripts (`exercises/judging/scripts.py`) or by a `play` of the grader's own.
"""
