"""From text to token ids and back, by byte-pair encoding.

A language model does not read letters. It reads token ids: numbers that represent pieces of text. This
script learns such pieces from a text, merge by merge, and shows how each merge shortens a sentence. Then
it encodes words with GPT-2's vocabulary, and streams a text whose tokens end in the middle of a
character. It also measures density: characters per token in English, in code and in other scripts. Density
determines how much text fits into a model's context, and the price. At the end the script writes a conversation as
one text, as a chat model reads it.

    python phase1_tokens_embeddings/tokenization_lab.py --text my_notes.txt

The algorithm is in tokens/bpe.py, the tokenizer that the whole course uses is in tokens/tokenizer.py.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from labkit.errors import LabError
from labkit.foreign import read_texts
from labkit.lab import Lab, run_lab
from phase1_tokens_embeddings.other_tokenizers import read_tokenizer
from phase1_tokens_embeddings.story import tokenization_story as chapters
from phase1_tokens_embeddings.story.token_density import course_texts
from phase1_tokens_embeddings.tokens import BPETokenizer


def story(lab: Lab) -> None:
    if not lab.args.sentence.strip():
        raise LabError("--sentence is empty: give a sentence, or leave the option out")
    texts = read_texts(lab.args.text) if lab.args.text else course_texts()
    vocabularies = {"GPT-2": BPETokenizer.from_tiktoken("gpt2")}  # first: the claims are about it
    if lab.args.model != "gpt2":
        vocabularies[Path(lab.args.model).name] = chapters.tokenizer_of(lab.args.model)
    for file in lab.args.tokenizers:
        vocabularies[Path(file).absolute().parent.name] = read_tokenizer(file)

    learned = chapters.watch_merges(lab, texts)
    chapters.look_at_words(lab, vocabularies)
    chapters.protect_and_stream(lab, *next(iter(vocabularies.items())))
    chapters.compare_density(lab, vocabularies, "\n".join(texts) if lab.args.text else "")
    chapters.chat_becomes_text(lab, learned)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, sentence = parser.add_argument, chapters.SENTENCE
    add("--text", metavar="PATH", help="learn from this file or folder (the course's own texts)")
    add(
        "--tokenizers",
        nargs="+",
        default=[],
        metavar="FILE",
        help="compare these tokenizer.json files as well",
    )
    add("--sentence", default=sentence, help=f"the sentence that shrinks ({sentence!r})")


def main(argv: Sequence[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("model", "quick"), add_arguments=add_arguments, argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
