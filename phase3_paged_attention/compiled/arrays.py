"""Tensors as compiled code takes them."""

import numpy as np
import torch
from torch import Tensor


def stored_bits(tensor: Tensor) -> np.ndarray:
    """A tensor's memory on a CPU as numpy knows it: bfloat16 as uint16, fp8 as uint8, other numbers as they are."""
    known = {torch.bfloat16: torch.uint16, torch.float8_e4m3fn: torch.uint8}
    return tensor.view(known.get(tensor.dtype, tensor.dtype)).detach().numpy()
