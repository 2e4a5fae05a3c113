"""The CPU backend: a model's linear layers in the way that is fastest on this processor.

It attaches as the entry point "cpu" of `inference_lab.runners`, and changes no model: what it repacks it keeps in a copy of
the model's tree of modules. Without it the engine runs the model as it is, with the same tokens.

    choice.py        which way is the fastest, measured once
    linear.py        the ways
    few_rows.py      one of them: our own kernel for weights in 32, 16, 8 and 4 bits
    tiles.py         how its weights lie in memory
    blocks.py        the layers, with compiled functions between the linear ones
    fused.py         these functions
    backend.py       all of it around a model
    runner.py        runs it, on the cores that other programs leave
"""

from phase4_scheduler.cpu.backend import prepare
from phase4_scheduler.cpu.runner import CPURunner
