"""What attaches to the core of this phase (`model/`): two tables. A feature that is deleted takes its rows along."""

import labkit  # before torch: it says how threads wait

CHECKPOINT_FORMATS = {
    ".gguf": "phase2_attention_kvcache.quantization.gguf_checkpoint",
    "quantization_config": "phase2_attention_kvcache.quantization.compressed_tensors",
}
"""Checkpoints that the core does not read itself: the suffix of a file, or the setting of config.json that announces one -> the
module that reads it, by `read_settings(path)` and `load(kind, path, dtype, device)`."""

ROPE_SCALINGS = dict.fromkeys(
    ("linear", "llama3", "yarn"), "phase2_attention_kvcache.other_positions.rope_scaling"
)
"""Kinds of `rope_scaling` in a config.json -> the module that knows them, by `slow_down(frequencies, theta, scaling)` and
`amplitude(scaling)`."""
