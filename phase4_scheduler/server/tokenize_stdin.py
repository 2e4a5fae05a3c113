"""Token ids of a long text, in a process of its own: text on stdin, ids on stdout, four bytes each.

    python -P phase4_scheduler/server/tokenize_stdin.py TOKENIZER.json < TEXT > IDS

Python runs one thread at a time, and 5 MB of text take seconds. In a thread of the API process the others would wait.
"""

import sys
from array import array

from phase1_tokens_embeddings.tokens import BPETokenizer

if __name__ == "__main__":
    text = sys.stdin.buffer.read().decode()
    ids = BPETokenizer.from_file(sys.argv[1]).encode(text, "all")
    sys.stdout.buffer.write(array("I", ids).tobytes())
