"""A feature: positions beside the plain rotation. Scaled rotations for long contexts, and the kinds from before.

`rope_scaling.py` slows the rotation of the model. It attaches through `ROPE_SCALINGS` (this phase's `__init__.py`).
`older_kinds.py` attaches nowhere: a script compares these kinds with the rotation.
"""
