"""Look into the embedding: which words are neighbours, and how a model knows their order.

A token id is only an index: 1287 is not "more" than 868. So a model has a table with a vector of some hundred
numbers for each token. Training gives similar vectors to tokens that are used in similar contexts. This script reads
the table from the checkpoint, finds neighbours, draws a map, and then builds the input of the first layer: token
vector plus position vector. Without position vectors, "dog bites man" and "man bites dog" would be the same set of
vectors.

The library is weights/embeddings.py.
"""

import argparse
from pathlib import Path

from labkit.lab import Lab, run_lab
from labkit.models import find_model
from phase1_tokens_embeddings.story import embedding_story as chapters
from phase1_tokens_embeddings.weights.embeddings import load_embeddings


def story(lab: Lab) -> None:
    folder = find_model(lab.args.model)
    name = Path(lab.args.model).name or folder.resolve().name
    e = load_embeddings(folder)
    chapters.tell_tables(lab, e, name)
    chapters.tell_neighbours(lab, e)
    chapters.tell_king_and_queen(lab, e)
    chapters.tell_input(lab, e, folder, name)
    chapters.tell_order(lab, e)
    lab.title("The map")
    chapters.draw(lab, e, name)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    words = "show the neighbours of these words"
    parser.add_argument("--word", nargs="+", default=[], metavar="WORD", help=words)


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, ("model", "quick"), add_arguments, argv)


if __name__ == "__main__":
    raise SystemExit(main())
