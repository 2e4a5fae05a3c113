# %% [markdown]
# # 2.4 Rotary positions
#
# Attention by itself does not know the positions of tokens. Llama adds them by **rotating** queries and keys. Two numbers
# of a vector form a point in the plane, which is rotated by an angle that grows with the token's position. The score of two rotated
# vectors depends on the *difference* of their angles, and so on the distance of the two tokens.
#
# A vector of d numbers has d/2 pairs. Number i pairs with number i + d/2 (as in Hugging Face's files; in the paper
# neighbours form a pair). Pair i, counted from 0, is rotated by
#
#     angle = position x speed        speed = theta^(-2i / d)        theta: 10,000
#
# in radians (a full turn is 2 pi). So pair 0 rotates by 1 from token to token, and each later pair more slowly. Rotating a
# point (a, b) gives
#
#     (a cos - b sin, b cos + a sin)
#
# By hand:
#
# - d = 2, position 1: the angle is 1, and (1, 0) becomes (cos 1, sin 1) = (0.54, 0.84). At position 0 nothing changes.
# - d = 4, position 2: the speeds are 1 and 10,000^(-2/4) = 0.01, the angles 2 and 0.02. In (1, 1, 0, 0) the pairs are
#   numbers 0 and 2, which are (1, 0), and numbers 1 and 3, also (1, 0). The first becomes (cos 2, sin 2), the second
#   (cos 0.02, sin 0.02), each back to its places: (-0.42, 1.00, 0.91, 0.02).
#
# Use the **positions**. A prompt may be computed in chunks, and a new token is computed alone: the first token of a call is rarely at
# position 0. Check the dtype, too: x may be bfloat16, which cannot represent both 1,001 and 1,002. Compute
# the angles in float32, and return the dtype of `x`.
# %%
import torch

from exercises.grading import check, hint


# %% tags=["answer"]
def rotate(x: torch.Tensor, positions: torch.Tensor, theta: float = 10_000.0) -> torch.Tensor:
    """Rotate queries or keys by the angles of their positions.

    Args:
        x: [N, heads, d], d even.
        positions: [N] integers, the position of each token.

    Returns:
        [N, heads, d], in the dtype of x.
    """
    # BEGIN SOLUTION
    half = x.shape[-1] // 2
    speeds = theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = positions.float()[:, None] * speeds  # [N, d/2]
    cos, sin = angles.cos()[:, None, :], angles.sin()[:, None, :]  # the same for every head
    a, b = x[..., :half].float(), x[..., half:].float()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)
    # END SOLUTION


# %% tags=["check"]
check("p2e4_rotary", rotate)
# %% [markdown]
# ## Into the engine
#
# A small Llama with random weights runs in the engine, with prompts in chunks of 8 tokens: first with the course's
# rotation, then with yours. The course computes the table of angles once for all positions, and then looks up its rows.
# Your function computes sines and cosines in every step of every layer. The speed hardly differs: heads of 8 numbers, as
# here, have 4 angles per token, which is little beside the rest of a step.
# %% tags=["engine"]
from unittest.mock import patch

from exercises.judging.engine_runs import passed, same_or_stop, speed, timed
from exercises.phase2.in_engine import small_llama, tokens_of
from phase2_attention_kvcache.model import layers

passed("p2e4_rotary", rotate)
prompts = [list(range(20, 45)), [7, 8, 9]]
model = small_llama()
course, course_seconds = timed(lambda: tokens_of(model, prompts))

# The model looks up rows of two tables by position, and passes them to apply_rotary.
# If the tables hold positions, apply_rotary receives positions.
model.cos = model.sin = torch.arange(model.config.max_context)
theta = model.config.rope_theta
with patch.object(layers, "apply_rotary", lambda x, positions, _: rotate(x, positions, theta)):
    mine, my_seconds = timed(lambda: tokens_of(model, prompts))
same_or_stop(mine, course, says="with your rotation the model writes other tokens")
print("The course's tokens:")
print(mine[0], mine[1], sep="\n")
print(speed(my_seconds, course_seconds))
