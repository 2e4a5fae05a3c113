"""The tensor names of each family: the course's name -> the names in the family's files.

{} stands for the layer (then, in a mixture, the expert); the last one for weight or bias. Several names on the right are
joined along the output dimension.
"""

GPT2_NAMES = {
    "token_table.{}": ["wte.{}"],
    "position_table.{}": ["wpe.{}"],
    "final_norm.{}": ["ln_f.{}"],
    "blocks.{}.attention_norm.{}": ["h.{}.ln_1.{}"],
    "blocks.{}.attention.qkv.{}": ["h.{}.attn.c_attn.{}"],
    "blocks.{}.attention.out.{}": ["h.{}.attn.c_proj.{}"],
    "blocks.{}.mlp_norm.{}": ["h.{}.ln_2.{}"],
    "blocks.{}.mlp.up.{}": ["h.{}.mlp.c_fc.{}"],
    "blocks.{}.mlp.down.{}": ["h.{}.mlp.c_proj.{}"],
    "head.{}": ["lm_head.{}"],
}
LLAMA_NAMES = {
    "token_table.{}": ["embed_tokens.{}"],
    "final_norm.{}": ["norm.{}"],
    "blocks.{}.attention_norm.{}": ["layers.{}.input_layernorm.{}"],
    "blocks.{}.attention.qkv.{}": [f"layers.{{}}.self_attn.{p}_proj.{{}}" for p in "qkv"],
    "blocks.{}.attention.out.{}": ["layers.{}.self_attn.o_proj.{}"],
    "blocks.{}.mlp_norm.{}": ["layers.{}.post_attention_layernorm.{}"],
    "blocks.{}.mlp.gate_up.{}": [f"layers.{{}}.mlp.{p}_proj.{{}}" for p in ("gate", "up")],
    "blocks.{}.mlp.down.{}": ["layers.{}.mlp.down_proj.{}"],
    "head.{}": ["lm_head.{}"],
}
QK_NORM_NAMES = {
    "blocks.{}.attention.q_norm.{}": ["layers.{}.self_attn.q_norm.{}"],
    "blocks.{}.attention.k_norm.{}": ["layers.{}.self_attn.k_norm.{}"],
}
NORMED_AFTER_NAMES = {
    "blocks.{}.attention_post_norm.{}": ["layers.{}.post_attention_layernorm.{}"],
    "blocks.{}.mlp_norm.{}": ["layers.{}.pre_feedforward_layernorm.{}"],
    "blocks.{}.mlp_post_norm.{}": ["layers.{}.post_feedforward_layernorm.{}"],
}
FUSED_NAMES = {
    "blocks.{}.attention.qkv.{}": ["layers.{}.self_attn.qkv_proj.{}"],
    "blocks.{}.mlp.gate_up.{}": ["layers.{}.mlp.gate_up_proj.{}"],
}


def expert_names(router: str, experts: str, gate: str, up: str, down: str) -> dict[str, list[str]]:
    return {
        "blocks.{}.mlp.router.{}": [f"layers.{{}}.{router}.{{}}"],
        "blocks.{}.mlp.experts.{}.gate_up.{}": [f"layers.{{}}.{experts}.{{}}.{w}.{{}}" for w in (gate, up)],
        "blocks.{}.mlp.experts.{}.down.{}": [f"layers.{{}}.{experts}.{{}}.{down}.{{}}"],
    }


EXPERT_NAMES = expert_names("mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj")
MIXTRAL_NAMES = expert_names("block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2")

WEIGHT_NAMES: dict[str, dict[str, list[str]]] = {
    "gpt2": GPT2_NAMES,
    "llama": LLAMA_NAMES,
    "mistral": LLAMA_NAMES,
    "qwen2": LLAMA_NAMES,
    "qwen3": LLAMA_NAMES | QK_NORM_NAMES,
    "smollm3": LLAMA_NAMES,
    "phi3": LLAMA_NAMES | FUSED_NAMES,
    "olmo2": LLAMA_NAMES | QK_NORM_NAMES | NORMED_AFTER_NAMES,
    "gemma": LLAMA_NAMES,
    "gemma2": LLAMA_NAMES | NORMED_AFTER_NAMES,
    "gemma3_text": LLAMA_NAMES | QK_NORM_NAMES | NORMED_AFTER_NAMES,
    "qwen3_moe": LLAMA_NAMES | QK_NORM_NAMES | EXPERT_NAMES,
    "mixtral": LLAMA_NAMES | MIXTRAL_NAMES,
    "olmoe": LLAMA_NAMES | QK_NORM_NAMES | EXPERT_NAMES,
}
"""By the `model_type` of a config.json, as `FAMILIES`."""
