"""Write a model as one GGUF file, in 16 or 32 bits or quantized: the file that llama.cpp and this course's engine load.

    lab convert tales tales.gguf --type Q8_0
    python phase2_attention_kvcache/tell_story.py --model tales.gguf

F32, F16 and BF16 store each weight as a number. Q8_0 and Q4_0 store 32 weights as whole numbers of 8 or 4 bits with one
scale: 8.5 and 4.5 bits per weight. Norms, biases and positions stay F32.
"""

import argparse
from pathlib import Path

from labkit.errors import LabError
from labkit.models import find_model
from labkit.options import Parser
from labkit.paths import check_writable
from labkit.terminal import run
from phase1_tokens_embeddings.weights import read_gguf_header
from phase1_tokens_embeddings.weights.ggml_blocks import WRITABLE
from phase1_tokens_embeddings.weights.gguf_model import is_gguf
from phase1_tokens_embeddings.weights.gguf_writer import write_gguf
from phase2_attention_kvcache.model.config import read_config
from phase2_attention_kvcache.quantization.gguf_checkpoint import rope_factors


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="lab convert", description=__doc__)
    parser.add_argument("model", help="a name or a folder")
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    parser.add_argument("--type", default="F16", choices=WRITABLE, help="of the matrices (F16)")
    return parser


def main(argv: list[str] | None = None) -> int:
    return run(lambda: convert(build_parser().parse_args(argv)))


def convert(a: argparse.Namespace) -> int:
    if not is_gguf(a.out):
        raise LabError(f"{a.out} does not end in .gguf: name a file that does")
    folder = find_model(a.model)
    if is_gguf(folder):
        raise LabError(f"{folder} is a GGUF file already: give the model's folder")
    check_writable(a.out)
    config = read_config(folder)
    try:
        write_gguf(folder, a.out, a.type, rope_factors(config))
    except FileNotFoundError:
        raise
    except OSError as error:  # numpy says how much it wrote, and no more
        why = error.strerror or str(error)
        raise LabError(f"cannot write {a.out} ({why}): nothing was written. Is the disk full?") from None
    nbytes, weights = read_gguf_header(a.out).file_bytes, config.num_parameters
    print(
        f"{a.out}: {nbytes:,} bytes, {8 * nbytes / weights:.2f} bits per weight with the vocabulary, {weights:,} weights"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
