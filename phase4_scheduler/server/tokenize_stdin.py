"""Token ids of a long text, in a process of its own: text on stdin, ids on stdout, four bytes each.

    python -P phase4_scheduler/server/tokenize_stdin.py MODEL < TEXT > IDS

Python runs one thread at a time, and 5 MB of text take seconds. In a thread of the API process the others would wait.
"""

import os
import sys
from array import array
from pathlib import Path

from phase1_tokens_embeddings.other_tokenizers import read_tokenizer
from phase1_tokens_embeddings.tokens import Tokenizer


def load(path: Path) -> Tokenizer:
    if path.is_dir():
        return read_tokenizer(path / "tokenizer.json")
    # Only here, since it imports torch: seconds, and 200 MB.
    from phase1_tokens_embeddings.weights.gguf_model import load_tokenizer

    return load_tokenizer(path)


if __name__ == "__main__":
    if hasattr(os, "nice"):
        os.nice(10)  # the engine's steps go first
    text = sys.stdin.buffer.read().decode()
    ids = load(Path(sys.argv[1])).encode(text, "all")
    sys.stdout.buffer.write(array("I", ids).tobytes())
