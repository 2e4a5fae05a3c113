"""The CPU backend: a model's linear layers in the way that is fastest on this processor.

It attaches as the entry point "cpu" of `inference_lab.runners`, and changes no model: what it repacks it keeps in a copy of
the model's tree of modules. Without it the engine runs the model as it is, with the same tokens.

    choice.py        which way is the fastest, measured once
    linear.py        the ways
    few_rows.py      one of them: our own kernel for weights in 32, 16, 8 and 4 bits
    backend.py       all of it around a model
"""

from phase4_scheduler.cpu.backend import CPURunner, prepare

__all__ = ["CPURunner", "prepare"]
