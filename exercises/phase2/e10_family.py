# %% [markdown]
# # 2.10 A model of an unknown family
#
# A new model was published. The course's table does not contain its family, and there is no paper yet. But its folder has a
# `config.json`, and a header in front of the weights that names every tensor and its shape. That is enough to run it.
#
# Write the family's row of the table. It has six choices:
#
# - `positions`: `"learned"` if the file holds a table of positions (`embed_positions`), else `"rotary"`.
# - `norm`: `"layer"` if norms shift as well as scale, that is, if they have a bias; else `"rms"`.
# - `norm_at`: `"before"` attention and MLP, `"after"` them, or `"around"`: both.
# - `qk_norm`: `"head"` if each head of the queries and keys is normed by itself, `"row"` if all heads of a token are normed together,
#   else `None`.
# - `mlp`: `"gelu"` has two matrices. `"swiglu"` and `"geglu"` have a third matrix for gates, and are named after the activation of the
#   gates: `hidden_act` is `"silu"` or `"gelu_pytorch_tanh"`.
# - `mixture`: True if the model has experts.
#
# The names are those of Hugging Face's files. Some of them mislead:
#
#     input_layernorm             before attention
#     post_attention_layernorm    after attention, if there is also a norm after the MLP. Otherwise *before the MLP*: Llama's
#                                 authors named it after the layer that precedes it
#     pre_feedforward_layernorm   before the MLP          post_feedforward_layernorm   after the MLP
#     q_norm, k_norm              of queries, of keys
#     mlp.gate_proj               the gates; or mlp.gate_up_proj: gate_proj and up_proj as one matrix
#     mlp.gate                    no gate: a mixture's router. Its experts are mlp.experts.0, mlp.experts.1, ...
#
# By hand: with 4 heads of 8 numbers, `q_norm.weight` of shape (8,) is `"head"`, of shape (32,) it is `"row"`.
# %%
from exercises.grading import check, hint


# %% tags=["answer"]
def choices(config: dict, shapes: dict[str, tuple[int, ...]]) -> dict:
    """Determine the row of a family.

    Args:
        config: the fields of its config.json: num_attention_heads, num_key_value_heads, head_dim, hidden_act, ...
        shapes: name of a tensor, such as "model.layers.0.self_attn.q_norm.weight" -> its shape.

    Returns:
        {"positions": ..., "norm": ..., "norm_at": ..., "qk_norm": ..., "mlp": ..., "mixture": ...}
    """
    # BEGIN SOLUTION
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
    # END SOLUTION


# %% tags=["check"]
check("p2e10_family", choices)
# %% [markdown]
# ## Into the engine
#
# This cell writes the folder of a model of an unknown family. The course refuses to load it. Then your row is added to the table, and
# the engine runs the model: its tokens must be those of the original.
# %% tags=["engine"]
from pathlib import Path
from tempfile import TemporaryDirectory

from exercises.judging.engine_runs import passed, same_or_stop
from exercises.phase2.in_engine import tokens_of
from exercises.phase2.unknown_models import family_added, write_unknown_model
from phase2_attention_kvcache.model import Transformer

passed("p2e10_family", choices)
prompts = [[3, 1, 4, 1, 5, 9, 2, 6], [27, 18, 28]]
with TemporaryDirectory() as folder:
    written, config, shapes = write_unknown_model(Path(folder))
    try:
        Transformer.from_pretrained(folder)
    except ValueError as error:
        print("before:", str(error).rpartition(": ")[2][:60], "...")
    with family_added(choices(config, shapes)):
        mine = tokens_of(Transformer.from_pretrained(folder), prompts)
        same_or_stop(mine, tokens_of(written, prompts), says="with your row the model writes other tokens")
print("with your row:", *mine)
print("its family:", choices(config, shapes))
