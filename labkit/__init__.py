"""Code that all phases use and a learner need not read: reports, figures, finding models, the `lab` command."""

import os
import signal
import sys
from importlib.util import find_spec

from labkit.interrupts import end_at_once, is_a_program

# From the first import of a script on, because the other imports take seconds.
if is_a_program() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, end_at_once)

if (is_a_program() or sys.argv[0] == "-m") and (
    missing := next((m for m in ("rich", "torch") if find_spec(m) is None), None)
):
    activate = r".venv\Scripts\activate" if os.name == "nt" else "source .venv/bin/activate"
    print(
        f"error: this Python has no {missing}, so it is not the course's: run `{activate}` first "
        "(README.md says how to make that environment)",
        file=sys.stderr,
    )
    raise SystemExit(2)

# The threads of a step wait for each other a hundred times. A waiting thread spins before it sleeps, by default
# for milliseconds. If another program needs a core as well, the spinning thread can occupy the core of the thread that it
# waits for, and the step takes many times as long. torch reads the variable when it is loaded, so it is set here.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")

# For each number of tokens in a step, oneDNN (torch's library for 16-bit matrix multiplications) generates about half
# a megabyte of code, and so does the layer above it (ideep). Both cache the last 1,024 versions, which takes gigabytes.
for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(name, "256")
