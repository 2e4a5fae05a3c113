"""Answers to p2e10_family: right ones, and mistakes by the diagnosis they must get."""


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


RIGHT = [by_layer_zero]
WRONG = {
    "family-post-attention-is-after": {'"post_feedforward_layernorm"': '"post_attention_layernorm"'},
    "family-around-is-after": {'"around" if after and before else "after"': '"after"'},
    "family-after-missed": {'"post_feedforward_layernorm" in parts': "False"},
    "family-norm-always-rms": {'"layer" if any(name.endswith("norm.bias") for name in shapes) else "rms"': '"rms"'},
    "family-norm-by-any-bias": {'"norm.bias"': '".bias"'},
    "family-qk-missed": {'"q_norm.weight"': '"q_layernorm.weight"'},
    "family-qk-always-head": {'"head" if widths[0] == config["head_dim"] else "row"': '"head"'},
    "family-qk-by-kv-heads": {'widths[0] == config["head_dim"]': 'config["num_key_value_heads"] != config["num_attention_heads"]'},
    "family-gate-by-activation": {'"gate_proj" in parts or "gate_up_proj" in parts': 'config["hidden_act"] == "silu"'},
    "family-gate-always-silu": {'"swiglu" if config["hidden_act"] == "silu" else "geglu"': '"swiglu"'},
    "family-fused-gate-missed": {' or "gate_up_proj" in parts': ""},
    "family-router-is-a-gate": {'"gate_proj" in parts or': '"gate_proj" in parts or "gate" in parts or'},
    "family-experts-missed": {'"experts" in parts': "False"},
    "family-learned-by-config": {'"embed_positions" in parts': '"max_position_embeddings" in config'},
}  # fmt: skip
