# %% [markdown]
# # 2.8 Two weights in a byte
#
# torch and most processors have no 4-bit type. So two **codes** share a byte, and 32 weights, a **group**, share a **scale**.
# In Q4_0, llama.cpp's format, a code is a whole number from 0 to 15, and code 8 represents 0.0:
#
#     weight = (code - 8) x scale
#
# The two codes of a byte are not neighbours. Byte j of a group holds code j in its low four bits and code j + 16 in its
# high four bits. So one AND gives a processor the first 16 neighbours at once, and one shift the other 16.
#
# By hand, with groups of 4 instead of 32, so that byte j holds codes j and j + 2. Codes 1, 15, 8, 2 become two bytes: 1 + 16 x 8 =
# 129, and 15 + 16 x 2 = 47. With a scale of 0.5 they represent the weights -3.5, 3.5, 0, -3.
#
# Both functions work on any number of groups at once: the dimensions before the last one stay unchanged.
# %%
import torch

from exercises.grading import check, hint


# %% tags=["answer"]
def pack(codes: torch.Tensor) -> torch.Tensor:
    """Pack two codes into each byte.

    Args:
        codes: uint8 [..., 32], from 0 to 15.

    Returns:
        uint8 [..., 16].
    """
    # BEGIN SOLUTION
    low, high = codes[..., :16], codes[..., 16:]
    return low | high << 4
    # END SOLUTION


def unpack(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Compute the weights.

    Args:
        packed: uint8 [..., 16], as `pack` returns them. scales: float32 [...], one for each group.

    Returns:
        float32 [..., 32].
    """
    # BEGIN SOLUTION
    codes = torch.cat((packed & 15, packed >> 4), dim=-1)
    return (codes.float() - 8) * scales[..., None]
    # END SOLUTION


# %% tags=["check"]
check("p2e8_int4_groups", pack, unpack)
# %% [markdown]
# ## Into the engine
#
# `tales` is stored in 4 bits per weight, 4.5 with the scales, and your `unpack` computes every weight in every step. The tokens must
# be those of the course's own unpacking. (`lab serve --quantization q4_0` unpacks in compiled code, inside the matrix multiplication.)
# %% tags=["engine"]
from unittest.mock import patch

from exercises.judging.engine_runs import passed, same_or_stop
from phase2_attention_kvcache.model import SamplingParams, Transformer
from phase2_attention_kvcache.quantization.quantized_formats import FORMATS, Format
from phase2_attention_kvcache.quantization.quantized_linear import quantize_model, weight_bytes_of
from phase4_scheduler.assembly import load_tokenizer
from phase4_scheduler.engine import EngineConfig, LLMEngine

passed("p2e8_int4_groups", pack, unpack)
model = quantize_model(Transformer.from_pretrained("tales"), "q4_0")
engine = LLMEngine(model, load_tokenizer("tales"), EngineConfig(max_num_seqs=2))
params = SamplingParams(temperature=0, max_tokens=20)
prompts = ["Once upon a time there was", "The king had three"]


def your_rows(planes):
    packed = planes["codes"].unflatten(1, (-1, 16))
    return unpack(packed, planes["scales"].float()).flatten(1)


course = engine.generate(prompts, params)
yours = Format(FORMATS["q4_0"].quantize, your_rows, 32)
with patch.dict(FORMATS, q4_0=yours):
    mine = engine.generate(prompts, params)
for ours, theirs in zip(mine, course):
    same_or_stop(ours.token_ids, theirs.token_ids, says="with your weights the model writes other tokens")
    print(ours.prompt + ours.text)
print(f"all weights: {weight_bytes_of(engine.model):,} bytes, norms and positions in 32 bits")
