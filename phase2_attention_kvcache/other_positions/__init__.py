"""A feature: rotations that are scaled for contexts longer than those of the first training.

`rope_scaling.py` slows the rotation of the model. It attaches through `ROPE_SCALINGS` (this phase's `__init__.py`).
"""
