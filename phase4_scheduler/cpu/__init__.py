"""The CPU backend: a model's linear layers in the way that is fastest on this processor.

It attaches as the entry point "cpu" of `inference_lab.runners`, and changes no model: what it repacks it keeps in a copy of
the model's tree of modules. Without it the engine runs the model as it is, with the same tokens.

    choice.py        which way is the fastest, measured once
    linear.py        the ways
    kernels.py       our compiled functions: one of the ways, and what lies between linear layers
    tiles.py         how its weights lie in memory
    large_pages.py   puts weights into pages of 2 MB
    blocks.py        the layers around them
    backend.py       all of it around a model
    runner.py        runs it, on the cores that other programs leave
"""

from phase4_scheduler.cpu.backend import prepare
from phase4_scheduler.cpu.runner import CPURunner
