# %% [markdown]
# # 2.9 The outlier that ruins absmax
#
# Absmax is the simplest way to quantize weights to 8 bits. Each row of a matrix has a **scale**, which is set by the largest absolute
# weight of the row:
#
#     scale  = largest |weight| of the row / 127
#     code   = weight / scale, rounded to the nearest whole number: -127 .. 127
#     weight = code x scale                                  (the restored weight)
#
# So one weight far larger than the others, an **outlier**, ruins its whole row. By hand: the row 0.08, -0.28, 25.4 has the scale
# 25.4 / 127 = 0.2 and the codes 0, -1, 127. The restored weights are 0, -0.2, 25.4: the small ones are lost. If 25.4 is stored
# separately, the scale of the other two is 0.28 / 127 = 0.0022, their codes are 36 and -127, and the restored weights 0.079 and -0.28.
#
# Outliers are often in one column. A column belongs to one input of the layer. If that input is very small, its
# weights have to be very large, in nearly all rows. Find such a column, and mend the matrix: keep that column unchanged,
# and round all the others. The cost is one unquantized column among hundreds.
#
# (Keeping a few columns in 16 bits is the idea of LLM.int8(), Dettmers et al. 2022. There the inputs have the outliers.)
# %%
import torch

from exercises.grading import check, hint


# %% tags=["answer"]
def find_outlier(weight: torch.Tensor) -> int:
    """Find the column in which most rows have their largest absolute weight.

    Args:
        weight: float32 [out, in].
    """
    # BEGIN SOLUTION
    largest = weight.abs().argmax(dim=1)  # of each row: the column of its largest weight
    return int(largest.bincount().argmax())
    # END SOLUTION


def mend(weight: torch.Tensor, column: int) -> torch.Tensor:
    """Round a matrix by absmax, except for one column, and return the restored weights.

    A row that has only zeros in the other columns keeps these zeros.

    Args:
        weight: float32 [out, in]. column: the column to keep unchanged.

    Returns:
        float32 [out, in].
    """
    # BEGIN SOLUTION
    rest = weight.clone()
    rest[:, column] = 0
    scales = rest.abs().amax(dim=1, keepdim=True) / 127
    codes = (rest / scales.clamp(min=1e-30)).round()
    back = codes * scales
    back[:, column] = weight[:, column]
    return back
    # END SOLUTION


# %% tags=["check"]
check("p2e9_outlier", find_outlier, mend)
# %% [markdown]
# ## Into the engine
#
# `tales` has no such column, so this cell makes one. Behind each norm one input is divided by 256, and the column that reads it
# is multiplied by 256. The changed model writes the same words. Then the cell rounds its matrices to 8 bits, by
# absmax alone and with your two functions.
# %% tags=["engine"]
from exercises.judging.engine_runs import passed, same_or_stop, tales
from exercises.phase2.in_engine import tokens_of, with_an_outlier
from phase2_attention_kvcache.quantization.quantized_linear import QuantizedWeight

passed("p2e9_outlier", find_outlier, mend)
_, tokenizer = tales()
texts = ("Once upon a time there was", "The king had three")
prompts = [tokenizer.encode(text) for text in texts]
ways = {
    "all 32 bits": lambda weight: weight,
    "absmax": lambda weight: QuantizedWeight.of(weight, "int8").rows(slice(None)),
    "mended": lambda weight: mend(weight, find_outlier(weight)),
}
answers = {name: tokens_of(with_an_outlier(round_), prompts, max_tokens=24) for name, round_ in ways.items()}
for name, answer in answers.items():
    print(f"{name}:")
    for prompt, ids in zip(prompts, answer):
        print("-", tokenizer.decode(prompt + ids).replace("\n", " "))
same_or_stop(answers["mended"], answers["all 32 bits"], says="the mended model writes other tokens")
