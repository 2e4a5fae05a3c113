"""Answers to p2e10_family: right ones, and mistakes by the diagnosis they must get."""

from tests.exercises.changed import changed


def choices(config, shapes):
    parts = {part for name in shapes for part in name.split(".")}
    after = "post_feedforward_layernorm" in parts
    before = "input_layernorm" in parts
    widths = [shape[0] for name, shape in shapes.items() if name.endswith("q_norm.weight")]
    gated = "gate_proj" in parts or "gate_up_proj" in parts
    return {
        "positions": "learned" if "embed_positions" in parts else "rotary",
        "norm": "layer" if any(name.endswith("norm.bias") for name in shapes) else "rms",
        "norm_at": "around" if after and before else "after" if after else "before",
        "qk_norm": None if not widths else "head" if widths[0] == config["head_dim"] else "row",
        "mlp": "gelu" if not gated else "swiglu" if config["hidden_act"] == "silu" else "geglu",
        "mixture": "experts" in parts,
    }


def by_layer_zero(config, shapes):
    """Only the names of the first layer, by their endings."""
    layer = {name.split("layers.0.")[1]: shape for name, shape in shapes.items() if "layers.0." in name}
    row = dict(positions="rotary", norm="rms", norm_at="before", qk_norm=None, mlp="gelu", mixture=False)
    if any("embed_positions" in name for name in shapes):
        row["positions"] = "learned"
    for name, shape in layer.items():
        if "layernorm.bias" in name:
            row["norm"] = "layer"
        if name == "self_attn.k_norm.weight":
            row["qk_norm"] = "row" if shape[0] > config["head_dim"] else "head"
        if "mlp.experts." in name:
            row["mixture"] = True
        if "gate_proj" in name or "gate_up_proj" in name:
            row["mlp"] = {"silu": "swiglu"}.get(config["hidden_act"], "geglu")
    if "post_feedforward_layernorm.weight" in layer:
        row["norm_at"] = "around" if "pre_feedforward_layernorm.weight" in layer else "after"
    return row


RIGHT = [choices, by_layer_zero]
WRONG = {
    "family-post-attention-is-after": changed(choices, {'"post_feedforward_layernorm"': '"post_attention_layernorm"'}),
    "family-around-is-after": changed(choices, {'"around" if after and before else "after"': '"after"'}),
    "family-after-missed": changed(choices, {'"post_feedforward_layernorm" in parts': "False"}),
    "family-norm-always-rms": changed(choices, {'"layer" if any(name.endswith("norm.bias") for name in shapes) else "rms"': '"rms"'}),
    "family-norm-by-any-bias": changed(choices, {'"norm.bias"': '".bias"'}),
    "family-qk-missed": changed(choices, {'"q_norm.weight"': '"q_layernorm.weight"'}),
    "family-qk-always-head": changed(choices, {'"head" if widths[0] == config["head_dim"] else "row"': '"head"'}),
    "family-qk-by-kv-heads": changed(choices, {'widths[0] == config["head_dim"]': 'config["num_key_value_heads"] != config["num_attention_heads"]'}),
    "family-gate-by-activation": changed(choices, {'"gate_proj" in parts or "gate_up_proj" in parts': 'config["hidden_act"] == "silu"'}),
    "family-gate-always-silu": changed(choices, {'"swiglu" if config["hidden_act"] == "silu" else "geglu"': '"swiglu"'}),
    "family-fused-gate-missed": changed(choices, {' or "gate_up_proj" in parts': ""}),
    "family-router-is-a-gate": changed(choices, {'"gate_proj" in parts or': '"gate_proj" in parts or "gate" in parts or'}),
    "family-experts-missed": changed(choices, {'"experts" in parts': "False"}),
    "family-learned-by-config": changed(choices, {'"embed_positions" in parts': '"max_position_embeddings" in config'}),
}  # fmt: skip
