"""What the phases share and a learner need not read: reports, figures, finding models, the `lab` command."""

import os
import signal

from labkit.interrupts import end_at_once, is_a_program

# From the first import of a script on: the rest of them takes seconds.
if is_a_program() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, end_at_once)

# The threads of a step wait for each other a hundred times. A waiting thread spins for a while before it sleeps, by default
# for milliseconds. If another program wants a core as well, it so keeps the core from the very thread that it waits for,
# and the step takes many times as long. torch reads this when it is loaded, so it stands here.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
