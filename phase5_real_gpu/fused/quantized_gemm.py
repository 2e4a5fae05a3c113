"""GEMMs with weights in 8 or 4 bits: one program per tile of outputs, weights dequantized in registers.

A decode step reads every weight once and multiplies it with few rows, so its floor is bytes over bandwidth:

    bytes = outputs * inputs * bits / 8  +  scales and zero points  +  (inputs + outputs) * 2 per row

For [1, 4096] x [4096, 4096] in 4 bits with zero points that is 10.0 MB instead of 33.6 MB: floors of 2.1 us and 7.0 us at the
4.8 TB/s of an H200. The time itself is not measured; with one warp for each scheduler unpacking may be the limit.
Writing the weights to memory as floats would lose the saving. So a program loads codes, converts them in its registers,
and multiplies them on the tensor cores at once:

    bytes [OUTPUTS, COLUMNS] -> codes -> (code - zero) * scale -> 16 bits -> dot with x [ROWS, COLUMNS]

Of 32 codes of 4 bits, the low halves of 16 bytes hold the first 16, the high halves the others (`pack_nibbles`, Phase 1).
Sorting them would mean moving numbers between threads. The order of the terms of a sum does not matter, so
the low halves are multiplied with their inputs, then the high halves with theirs.

Not implemented: dividing the sum for matrices with fewer tiles than the card has multiprocessors ("split K"), and codes stored
in the layout of the tensor cores. Marlin does both (Frantar et al. 2024).

Source: the formats are those of `quantized_formats.py`, Phase 2.
"""

import torch
from torch import Tensor

from phase5_real_gpu.kernels.kernel_checks import COMPUTE_DTYPES
from phase5_real_gpu.kernels.triton_setup import (
    INTERPRETED,
    card_problem,
    has_matrix_instructions,
    require_triton,
    tl,
    triton,
)

GROUP = 32


@triton.jit
def quantized_gemm_kernel(
    x,  # [num_rows, num_inputs]
    codes,  # [num_outputs, num_inputs] int8, or [num_outputs, num_inputs / 2] uint8
    scales,  # [num_outputs, num_inputs / 32], or [num_outputs, 1]
    zeros,  # uint8 [num_outputs, num_inputs / 32]; not read without HAS_ZEROS
    out,  # [num_rows, num_outputs]
    num_rows,
    num_outputs,
    num_inputs,
    x_row_stride,
    codes_row_stride,
    scales_row_stride,  # of zeros as well
    out_row_stride,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,  # of all weights, where each group has none of its own
    HAS_ZEROS: tl.constexpr,
    ROW_SCALES: tl.constexpr,  # one scale for a whole row
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,  # bytes of a row that are read in one iteration
    IN_FLOAT32: tl.constexpr,  # multiply in float32: the interpreter cannot multiply bfloat16
):
    codes_of_byte: tl.constexpr = 8 // BITS
    bytes_of_group: tl.constexpr = 32 // codes_of_byte
    GROUPS: tl.constexpr = COLUMNS // bytes_of_group
    outputs = (tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)).to(tl.int64)[:, None]
    rows = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    acc = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for first_group in range(0, num_inputs // 32, GROUPS):
        columns = first_group * bytes_of_group + tl.arange(0, COLUMNS)[None, :]
        groups = first_group + tl.arange(0, GROUPS)[None, :]
        is_byte = (outputs < num_outputs) & (columns < num_inputs // codes_of_byte)
        packed = tl.load(codes + outputs * codes_row_stride + columns, mask=is_byte, other=0)
        # One number for a group, then the same for each of its bytes.
        is_group = (outputs < num_outputs) & (groups < num_inputs // 32)
        group_places = outputs * scales_row_stride + groups
        zero = ZERO
        if HAS_ZEROS:
            zero = tl.load(zeros + group_places, mask=is_group, other=0).to(tl.float32)
            zero = tl.broadcast_to(zero[:, :, None], (OUTPUTS, GROUPS, bytes_of_group))
            zero = tl.reshape(zero, (OUTPUTS, COLUMNS))
        if not ROW_SCALES:
            scale = tl.load(scales + group_places, mask=is_group, other=0.0).to(tl.float32)
            scale = tl.broadcast_to(scale[:, :, None], (OUTPUTS, GROUPS, bytes_of_group))
            scale = tl.reshape(scale, (OUTPUTS, COLUMNS))
        for half in tl.static_range(codes_of_byte):
            code = packed
            if BITS == 4:
                code = (packed >> (4 * half)) & 15
            weights = code.to(tl.float32) - zero
            if not ROW_SCALES:
                weights *= scale
            of_group = bytes_of_group * half + tl.arange(0, bytes_of_group)[None, None, :]
            inputs = groups[:, :, None] * 32 + of_group  # [1, GROUPS, bytes of a group]
            is_input = (rows[:, :, None] < num_rows) & (inputs < num_inputs)
            x_tile = tl.load(x + rows[:, :, None] * x_row_stride + inputs, mask=is_input, other=0.0)
            x_tile = tl.reshape(x_tile, (ROWS, COLUMNS))
            weights = weights.to(x_tile.dtype)
            if IN_FLOAT32:
                x_tile, weights = x_tile.to(tl.float32), weights.to(tl.float32)
            acc += tl.dot(x_tile, tl.trans(weights), input_precision="ieee")
    outputs = tl.trans(outputs)
    if ROW_SCALES:  # the same for all terms of a sum, so it is applied at the end
        acc *= tl.load(scales + outputs, mask=outputs < num_outputs, other=0.0).to(tl.float32)
    is_out = (rows < num_rows) & (outputs < num_outputs)
    tl.store(out + rows * out_row_stride + outputs, acc.to(out.dtype.element_ty), mask=is_out)


def quantized_gemm(x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor | None = None) -> Tensor:
    """x @ weight.T, with weight = (code - zero) * scale.

    Args:
        x: [N, in] in 16 or 32 bits.
        codes: int8 [out, in], zero point 0; or uint8 [out, in / 2], packed as `pack_nibbles` does, zero point 8.
        scales: float16 [out, in / 32], or float32 [out, 1].
        zeros: zero points instead of 8, uint8 [out, in / 32].

    Returns:
        [N, out], as x.

    Raises:
        ValueError: shapes, types or devices that do not fit. LabError: Triton is not installed.
    """
    check_product(x, codes, scales, zeros)
    num_rows, num_inputs = x.shape
    num_outputs = len(codes)
    out = torch.empty(num_rows, num_outputs, dtype=x.dtype, device=x.device)
    if num_rows == 0:
        return out
    bits = 8 if codes.dtype == torch.int8 else 4
    # Few outputs per program, so that a decode step has programs for all multiprocessors: with 4,096 outputs about one each. If it
    # waits for memory (not measured), more loads in flight help, so each keeps 24 KiB of codes in flight: six tiles of
    # 32 x 128 bytes. With many rows, more outputs, so that each converted weight is used more often. Without tensor cores
    # such tiles do not fit into registers.
    rows, outputs, columns, stages = 16, 32, 64, 3
    if has_matrix_instructions(x.element_size()):
        rows, outputs, columns, stages = (64, 64, 64, 3) if num_rows > 16 else (16, 32, 128, 7)
    grid = (triton.cdiv(num_outputs, outputs), triton.cdiv(num_rows, rows))
    quantized_gemm_kernel[grid](
        x, codes, scales, scales if zeros is None else zeros, out, num_rows, num_outputs, num_inputs,
        x.stride(0), codes.stride(0), scales.stride(0), out.stride(0),
        BITS=bits, ZERO=0 if bits == 8 else 8, HAS_ZEROS=zeros is not None, ROW_SCALES=scales.shape[1] == 1,
        ROWS=rows, OUTPUTS=outputs, COLUMNS=columns, IN_FLOAT32=INTERPRETED, num_warps=4,
        num_stages=stages,
    )  # fmt: skip
    return out


def check_product(x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor | None) -> None:
    require_triton()
    if codes.dtype not in (torch.int8, torch.uint8) or codes.ndim != 2 or codes.stride(1) != 1:
        what = f"codes {list(codes.shape)} are {codes.dtype}"
        raise ValueError(f"{what}: give rows of int8, or of uint8 (two codes a byte)")
    num_inputs = codes.shape[1] * (1 if codes.dtype == torch.int8 else 2)
    if x.ndim != 2 or x.shape[1] != num_inputs or x.stride(1) != 1 or num_inputs % GROUP:
        raise ValueError(
            f"x has shape {list(x.shape)}: these codes need [N, {num_inputs}], row by row, in groups of {GROUP}"
        )
    if x.dtype not in COMPUTE_DTYPES:
        raise ValueError(f"x is {x.dtype}: use one of float32, float16, bfloat16")
    grouped, by_row = (len(codes), num_inputs // GROUP), (len(codes), 1)
    if scales.shape not in (grouped, by_row) or not scales.is_contiguous():
        raise ValueError(f"scales have shape {list(scales.shape)}: give {list(grouped)} or {list(by_row)}")
    if zeros is not None and (zeros.shape, zeros.dtype, codes.dtype) != (
        scales.shape,
        torch.uint8,
        torch.uint8,
    ):
        raise ValueError("zeros go with codes of 4 bits: uint8, one for each scale")
    if any(tensor.device != x.device for tensor in (codes, scales, zeros) if tensor is not None):
        raise ValueError(f"x is on {x.device}, and codes, scales or zeros are not: move them")
    if problem := card_problem(x.dtype):
        raise ValueError(problem)
    if x.device.type == "cpu" and not INTERPRETED:
        raise ValueError("x is on the CPU, and the kernel runs on the GPU: move all tensors there")
