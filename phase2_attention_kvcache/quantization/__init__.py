"""A feature: weights, keys and values in 8 and 4 bits.

It changes the memory that a model takes and, a little, its numbers. It attaches in three places: `quantize_model` replaces linear
layers of a `Transformer`; `CHECKPOINT_FORMATS` (this phase's `__init__.py`) names the modules that read GGUF and compressed-tensors
checkpoints; a cache stores keys and values through `kv_formats.py`.
"""
