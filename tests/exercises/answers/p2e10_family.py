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
