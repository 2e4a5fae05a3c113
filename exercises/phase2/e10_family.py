# %% [markdown]
# # 2.10 A model of an unknown family
#
# A model came out last night. Its family is not in the course's table, and its paper is not written yet. But its folder is there:
# `config.json`, and in front of the weights a header that names every tensor and its shape. That is enough to run it.
#
# Write the row of the table. Six choices:
#
# - `positions`: `"learned"` if the file holds a table of positions (`embed_positions`), else `"rotary"`.
# - `norm`: `"layer"` if norms shift as well as scale, that is, if they have a bias; else `"rms"`.
# - `norm_at`: `"before"` attention and MLP, `"after"` them, or `"around"`: both.
# - `qk_norm`: `"head"` if each head of the queries and keys is normed by itself, `"row"` if all heads of a token together, else `None`.
# - `mlp`: `"gelu"` has two matrices. `"swiglu"` and `"geglu"` have a third one that opens gates, and are named for what bends the
#   gates: `hidden_act` is `"silu"` or `"gelu_pytorch_tanh"`.
# - `mixture`: whether there are experts.
#
# Names are as in Hugging Face's files. Some of them are traps:
#
#     input_layernorm             before attention
#     post_attention_layernorm    after attention, if there is a norm after the MLP, too. Else it stands *before the MLP*: Llama's
#                                 authors named it for what comes before it
#     pre_feedforward_layernorm   before the MLP          post_feedforward_layernorm   after the MLP
#     q_norm, k_norm              of queries, of keys
#     mlp.gate_proj               opens gates; or mlp.gate_up_proj: it and mlp.up_proj as one matrix
#     mlp.gate                    no gate: a mixture's router. Its experts are mlp.experts.0, mlp.experts.1, ...
#
# By hand: with 4 heads of 8 numbers, `q_norm.weight` of shape (8,) is `"head"`, of shape (32,) it is `"row"`.
# %%
from exercises.grading import check, hint


# %% tags=["answer"]
def choices(config: dict, shapes: dict[str, tuple[int, ...]]) -> dict:
    """The row of a family.

    Args:
        config: what its config.json says: num_attention_heads, num_key_value_heads, head_dim, hidden_act, ...
        shapes: by the names of the tensors, such as "model.layers.0.self_attn.q_norm.weight".

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
# A folder of such a family is written. The course does not know it and refuses to load it. Then your row goes into the table, and
# the engine runs it: the tokens must be those of the model that was written.
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
