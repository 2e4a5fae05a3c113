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
"""
