"""Token ids of a long text, in a process of its own: text on stdin, ids on stdout, four bytes each.

    python -P phase4_scheduler/server/tokenize_stdin.py MODEL < TEXT > IDS

Python runs one thread at a time, and 5 MB of text take seconds. In a thread of the API process the others would wait.
"""

import sys
from array import array
from pathlib import Path

from phase1_tokens_embeddings.weights.gguf_model import load_tokenizer

if __name__ == "__main__":
    text = sys.stdin.buffer.read().decode()
    ids = load_tokenizer(Path(sys.argv[1])).encode(text, "all")
    sys.stdout.buffer.write(array("I", ids).tobytes())
