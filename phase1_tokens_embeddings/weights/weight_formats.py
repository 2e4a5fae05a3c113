"""How many bytes the weights of a model take, format by format, down to the blocks of Q4_K_M.

A weight can be stored as a plain number: 4 bytes (FP32), 2 (FP16 and BF16), 1 (FP8 and INT8). Below that,
weights are stored in blocks: a few bits for each weight, and a scale that the whole block shares. NVIDIA's NVFP4 has a scale of 8
bits for 16 weights of 4 bits.

    Q4_K   256 weights x 4 bits = 128 bytes,  8 scales and 8 minima of 6 bits = 12,  2 FP16 for those = 4
           144 bytes for 256 weights = 4.5 bits per weight
    Q6_K   256 weights x 6 bits = 192 bytes,  16 scales of 8 bits = 16,  1 FP16 = 2
           210 bytes for 256 weights = 6.5625 bits per weight

"Q4_K_M" is not a format but a recipe: most matrices in Q4_K, the matrices most sensitive to rounding in Q6_K.
So its bits per weight depend on the model, and can only be found by going through the tensors.

Source: `llama-quant.cpp` (which tensor gets which type) and `ggml-common.h` (the blocks) of llama.cpp.
"""

from phase1_tokens_embeddings.weights.gguf_file import GGML_TYPES, BlockType
from phase1_tokens_embeddings.weights.model_shapes import ModelShape, TensorSpec

PLAIN_BITS = {"FP32": 32, "FP16": 16, "BF16": 16, "FP8": 8, "INT8": 8, "NVFP4": 4.5}
PRECISIONS = (*PLAIN_BITS, "Q4_K_M")

BLOCKS: dict[str, BlockType] = {block.name: block for block in GGML_TYPES.values()}
# For rows that do not divide into blocks of 256, llama.cpp takes the nearest type with blocks of 32.
_FALLBACK = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}


def find_precision(name: str) -> str:
    """The proper spelling of a precision.

    Raises:
        ValueError: unknown.
    """
    key = name.strip().upper()
    if key not in PRECISIONS:
        raise ValueError(f"unknown precision {name!r}: choose one of {', '.join(PRECISIONS)}")
    return key


def bits_per_weight(block_type: str) -> float:
    """
    >>> bits_per_weight("Q4_K"), bits_per_weight("Q6_K")
    (4.5, 6.5625)
    """
    return 8 * BLOCKS[block_type].nbytes / BLOCKS[block_type].size


def gets_more_bits(layer: int, num_layers: int) -> bool:
    """True in the layers where Q4_K_M uses more bits: the first eighth, the last eighth, every third between.

    Rounding errors of the first layers pass through all later layers; the last layers are next to the output.
    """
    eighth = num_layers // 8
    return layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2


def q4_k_m_type(tensor: TensorSpec, shape: ModelShape) -> str:
    """The block type that Q4_K_M gives to one tensor."""
    kind = tensor.name.removesuffix(".weight").split(".")[-1].removesuffix("_exps")  # experts: as a plain MLP
    if len(tensor.shape) == 1 or kind in ("position_embd", "ffn_gate_inp"):
        return "F32"  # norms, biases and routers: too few to be worth saving on
    if kind == "output" or (kind == "token_embd" and shape.tied):
        block = "Q6_K"  # every logit comes out of this matrix
    elif shape.num_experts == 8 and kind in ("attn_k", "attn_v", "attn_output"):
        block = "Q5_K" if kind == "attn_output" else "Q8_0"  # Mixtral: small beside its experts
    elif kind in ("attn_v", "ffn_down") and gets_more_bits(tensor.layer or 0, shape.num_layers):
        block = "Q6_K"
    elif kind == "attn_qkv":
        block = "Q5_K"  # Q, K and V in one matrix: a compromise
    elif kind == "attn_v" and shape.num_layers == 80 and shape.num_kv_heads < shape.num_heads:
        block = "Q5_K"  # Llama 70B: 8 heads share a V, so it is small and counts 8 times
    else:
        block = "Q4_K"
    return block if tensor.shape[-1] % BLOCKS[block].size == 0 else _FALLBACK.get(block, "F16")


def tensor_bytes(tensor: TensorSpec, shape: ModelShape, precision: str) -> int:
    """Bytes of one tensor. Plain 8-bit formats are counted without their scales (under 1%)."""
    if precision in PLAIN_BITS:
        return int(tensor.size * PLAIN_BITS[precision] / 8)
    block = BLOCKS[q4_k_m_type(tensor, shape)]
    return tensor.size // block.size * block.nbytes


def weight_bytes(shape: ModelShape, precision: str) -> int:
    """Bytes of all weights of a model.

    Raises:
        ValueError: unknown precision.
    """
    precision = find_precision(precision)
    return sum(tensor_bytes(t, shape, precision) for t in shape.tensors())
