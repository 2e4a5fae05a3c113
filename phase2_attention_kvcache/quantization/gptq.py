"""GPTQ: round the weights one after the other, and let those that are still free make up for each error.

Rounding to the nearest code looks at one weight at a time. But what counts is the layer's output, a sum over inputs that
go together: when x1 and x2 are always nearly alike, an error of +0.1 in the weight of x1 is undone by one of -0.1 in that
of x2. So take some text, see which inputs go together, and spread each error over the weights not yet rounded.

With inputs X [N, in] the squared error of an output is d H d, where d are the errors of its weights and H = X'X. Rounding
weight i by an error e is best made up for by moving the later weights j by -e U[i, j] / U[i, i], where U is the upper
Cholesky factor of the inverse of H. U is the same for all outputs, so a whole column is rounded at a time.

Source: Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers" (2023),
section 3, algorithm 1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from phase1_tokens_embeddings.weights.ggml_blocks import pack_nibbles
from phase2_attention_kvcache.model.caches import NoCache
from phase2_attention_kvcache.quantization.quantized_formats import GROUP, group_grid
from phase2_attention_kvcache.quantization.quantized_linear import (
    QuantizedLinear,
    QuantizedWeight,
    quantize_table,
)

DAMPING = 0.01  # of the mean of H's diagonal: inputs that hardly occur must not decide anything


def gptq_int4(weight: Tensor, hessian: Tensor) -> QuantizedWeight:
    """A matrix [out, in] as "int4", its errors spread by `hessian` [in, in] (X'X of some inputs).

    Raises:
        ValueError: rows that do not divide into groups, or inputs that are no numbers.
    """
    width = weight.shape[1]
    if width % GROUP:
        raise ValueError(f"a row of {width} weights does not divide into groups of {GROUP}")
    if not hessian.isfinite().all():
        raise ValueError(
            "the calibration text leads to inputs that are NaN or infinite: no error can be weighed"
        )
    damped = hessian.double() + DAMPING * hessian.diagonal().mean() * torch.eye(width)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    upper = torch.linalg.cholesky(inverse, upper=True).float()

    left = weight.float().clone()  # columns that are not rounded yet, moved by the errors so far
    codes = torch.empty_like(left)
    scales, zeros = [], []
    for start in range(0, width, GROUP):
        end = start + GROUP
        scale, zero = group_grid(left[:, start:end])  # [out, 1] each
        errors = torch.empty(len(weight), GROUP)
        for i in range(start, end):
            column = left[:, i : i + 1]
            codes[:, i : i + 1] = code = (column / scale + zero).round().clamp(0, 15)
            errors[:, i - start : i - start + 1] = error = (column - (code - zero) * scale) / upper[i, i]
            left[:, i + 1 : end] -= error * upper[i, i + 1 : end]
        left[:, end:] -= errors @ upper[start:end, end:]  # later groups in one go: it is the same sum
        scales.append(scale)
        zeros.append(zero)
    return QuantizedWeight(
        "int4",
        {
            "codes": pack_nibbles(codes),
            "scales": torch.cat(scales, dim=1).half(),
            "zeros": torch.cat(zeros, dim=1).to(torch.uint8),
        },
    )


@torch.inference_mode()
def quantize_model_gptq(model: nn.Module, texts: Sequence[Sequence[int]]) -> nn.Module:
    """Turn the blocks of a `Transformer` into int4 with GPTQ, in place, one after the other. Returns the model.

    A block is calibrated behind the blocks before it as they are by then, in few bits: it meets their errors too. The
    token table is rounded to int8: a token looks up one row, so there are no inputs that go together.

    Args:
        texts: token ids of some calibration texts, each no longer than the context.

    Raises:
        ValueError: a mixture of experts; and see `gptq_int4`.
    """
    if model.config.num_experts:
        raise ValueError(
            "GPTQ needs inputs of every layer, and some experts would see none: round to the nearest"
        )
    quantize_table(model, "int8")
    for block in model.blocks:
        layers = {name: module for name, module in block.named_modules() if isinstance(module, nn.Linear)}
        hessians = measure_inputs(model, layers, texts)
        for name, layer in layers.items():
            new = QuantizedLinear([gptq_int4(layer.weight, hessians[name])], layer.bias)
            block.set_submodule(name, new)
    return model


def measure_inputs(
    model: nn.Module, layers: dict[str, nn.Linear], texts: Sequence[Sequence[int]]
) -> dict[str, Tensor]:
    """X'X of the inputs of some layers over some texts: [in, in] for each."""
    sums = {name: torch.zeros(layer.in_features, layer.in_features) for name, layer in layers.items()}

    def note(name: str):
        def hook(_layer: nn.Module, inputs: tuple[Tensor]) -> None:
            x = inputs[0].float()
            sums[name].addmm_(x.t(), x)

        return hook

    hooks = [layer.register_forward_pre_hook(note(name)) for name, layer in layers.items()]
    try:
        for text in texts:
            ids = torch.tensor(text)
            model(ids, torch.arange(len(ids)), NoCache(model.config))
    finally:
        for hook in hooks:
            hook.remove()
    return sums
