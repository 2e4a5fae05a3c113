"""What learners hand in: parts of answers to exercise 1.1, and how they come in."""

import nbformat

from exercises.classroom.submission import Answer, Submission
from exercises.judging.sources import source_of
from exercises.publishing.build_notebooks import build_student, text_of
from labkit.paths import write_whole

COUNT = """
def count_pairs(tokens):
    counts = {}
    for i in range(1, len(tokens)):
        pair = (tokens[i - 1], tokens[i])
        counts[pair] = counts.get(pair, 0) + 1
    return counts
"""
MERGE = """
def merge(tokens, pair, new_id):
    out, rest = [], list(tokens)
    while rest:
        first = rest.pop(0)
        if rest and (first, rest[0]) == pair:
            rest.pop(0)
            first = new_id
        out.append(first)
    return out
"""
COUNT_ONCE = "def count_pairs(tokens):\n    return dict.fromkeys(zip(tokens, tokens[1:]), 1)\n"


def of(learner, *cells, name="p1e1_pairs", **noted):
    answer = Answer(cells=["from exercises.grading import check, hint", *cells], **noted)
    return Submission(learner=learner, answers={name: answer})


def hand_in(folder, one, name=None):
    write_whole(folder / f"{name or one.learner}.submission.json", one.model_dump_json())


def fresh(name):
    return text_of(build_student(source_of(name)))


def solve(path, *answers):
    """Put answers into a notebook."""
    nb = nbformat.read(path, as_version=4)
    next(c for c in nb.cells if c.metadata.get("tags") == ["answer"]).source = "\n\n".join(answers)
    nbformat.write(nb, path)


def notebooks(folder, *cells):
    """A folder of notebooks: an answer to the first, the second as it was given out."""
    folder.mkdir(parents=True)
    for name in ("p1e1_pairs", "p1e2_encode"):
        (folder / f"{name}.ipynb").write_text(fresh(name), encoding="utf-8")
    solve(folder / "p1e1_pairs.ipynb", *cells)
