"""How fast the tokenizer learns and encodes, beside tiktoken and Hugging Face's tokenizers.

    python phase5_real_gpu/benchmarks/tokenizer_benchmark.py --text FILE_OR_FOLDER

Training runs in a process of its own, on one core, and its peak memory is that of the whole process:
Python, the text and all counts. For encoding, all three libraries get the vocabulary that was just
learned, and a check that they give the same ids; then each encodes the same text on one core. Ours is
Python, the others are compiled Rust. The course's bar for training: 8,192 tokens from 10 MB of text
in under 60 seconds on one core, in under 1 GB.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

# Before the libraries start their threads: each gets one core.
os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import tiktoken
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from labkit.errors import LabError
from labkit.lab import Lab, run_lab
from labkit.machine import time_calls
from labkit.options import whole
from phase1_tokens_embeddings.story.token_density import read_texts
from phase1_tokens_embeddings.tokens import END_OF_TEXT, BPETokenizer

ENCODE_CHARACTERS = 5_000_000


def peak_memory() -> int:
    """Largest memory that this process ever held, in bytes."""
    try:  # Linux. getrusage would count the memory of the parent that started this process.
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return 1024 * int(status.split("VmHWM:")[1].split()[0])
    except OSError:
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def train_ours(path: str, vocab_size: int, save_to: str) -> tuple[float, int]:
    """In a process of its own: train, save the tokenizer; seconds, and peak memory in bytes."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    texts = read_texts(path)
    began = time.perf_counter()
    tok = BPETokenizer.train(texts, vocab_size)
    seconds = time.perf_counter() - began
    tok.save(save_to)
    return seconds, peak_memory()


def train_huggingface(texts: Sequence[str], vocab_size: int) -> float:
    """Seconds that the `tokenizers` library takes for the same job, on one core."""
    other = Tokenizer(models.BPE())
    other.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = dict(special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False)
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, **options)
    pieces = [piece for text in texts for piece in text.split(END_OF_TEXT)]
    return time_calls(lambda: other.train_from_iterator(pieces, trainer), repeats=1, warmup=0)[0]


def story(lab: Lab) -> None:
    path, vocab_size = lab.args.text, lab.args.vocab_size
    texts = read_texts(path)
    megabytes = sum(len(text.encode("utf-8")) for text in texts) / 1e6

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tokenizer.json"
        lab.say(f"Training {vocab_size:,} tokens on {megabytes:.1f} MB of text ...")
        try:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                training, memory = process.submit(train_ours, str(path), vocab_size, str(file)).result()
        except BrokenProcessPool:
            raise LabError("the training process was ended: is there enough memory?") from None
        tok, hub = BPETokenizer.from_file(file), Tokenizer.from_file(str(file))
    special = tok.special_tokens
    ranks = {b: i for i, b in enumerate(tok.token_bytes) if i not in set(special.values())}
    rust = tiktoken.Encoding("ours", pat_str=tok.split_pattern, mergeable_ranks=ranks, special_tokens=special)

    # Special tokens inside the text would be read as such by one library and not by another.
    text = "".join(texts).replace(END_OF_TEXT, "")[: ENCODE_CHARACTERS // (10 if lab.quick else 1)]
    size = len(text.encode("utf-8")) / 1e6
    began = time.perf_counter()
    expected = tok.encode(text)  # the first text that this tokenizer meets
    first = size / (time.perf_counter() - began)
    others = {"tiktoken": rust.encode_ordinary, "tokenizers": lambda text: hub.encode(text).ids}
    for name, encode in others.items():
        lab.predict(f"same-ids-{name}", f"{name} gives our ids", True, encode(text) == expected)
    speed = {}
    for name, encode in lab.progress(({"this course": tok.encode} | others).items(), "encoding", total=3):
        speed[name] = size / min(time_calls(lambda encode=encode: encode(text), repeats=3, warmup=0))

    other = train_huggingface(texts, vocab_size)
    lab.table(
        f"One core, {tok.vocab_size:,} tokens: training on {megabytes:.1f} MB, encoding {size:.1f} MB",
        ["library", "training s", "peak memory MB", "first encoding MB/s", "encoding MB/s"],
        [
            ("this course (Python)", training, memory / 1e6, first, speed["this course"]),
            ("tiktoken (Rust)", None, None, None, speed["tiktoken"]),
            ("tokenizers (Rust)", other, None, None, speed["tokenizers"]),
        ],
        note="""Best of 3 runs. First: no word was met before. After that our tokenizer remembers words, and a
        remembered word costs one look-up. tiktoken cannot train.""",
    )
    lab.record(
        training_seconds=training, training_peak_memory_bytes=memory, training_megabytes=megabytes,
        tokenizers_training_seconds=other, first_encoding_megabytes_per_second=first,
        encoding_megabytes_per_second=speed,
    )  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--text", metavar="PATH", required=True, help="a text file, or a folder of them")
    parser.add_argument(
        "--vocab-size", type=whole(257, 2**18), default=8192, metavar="N", help="tokens to learn (8192)"
    )


def main(argv: Sequence[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("quick",), add_arguments=add_arguments, argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
