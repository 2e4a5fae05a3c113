"""What the phases share and a learner need not read: reports, figures, finding models, the `lab` command."""

import signal

from labkit.interrupts import end_at_once, is_a_program

# From the first import of a script on: the rest of them takes seconds.
if is_a_program() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, end_at_once)
