"""Packed blocks: read bit for bit as the package `gguf` reads them."""

import gguf
import numpy as np
import pytest
import torch

from phase1_tokens_embeddings.weights.ggml_blocks import (
    PLAIN,
    READABLE,
    WRITABLE,
    dequantize_blocks,
    quantize_blocks,
    scales_of_blocks,
)


def random_rows(kind: str, rows: int, blocks: int, seed: int = 0) -> np.ndarray:
    """Rows of random bytes whose F16 scales are sound numbers."""
    rng = np.random.default_rng(seed)
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    raw = rng.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    for at in {"Q8_0": [0], "Q4_0": [0], "Q4_K": [0, 2], "Q6_K": [208]}.get(kind, []):
        scales = rng.standard_normal((rows, blocks, 1)).astype(np.float16)
        raw[:, :, at : at + 2] = scales.view(np.uint8)
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("kind", READABLE)
def test_blocks_are_read_bit_for_bit_as_the_package_reads_them(kind):
    raw = random_rows(kind, 40, 6)
    number = gguf.GGMLQuantizationType[kind]
    theirs = raw.view(np.float32) if kind == "F32" else gguf.quants.dequantize(raw, number)
    ours = dequantize_blocks(kind, torch.from_numpy(raw)).numpy()
    sound = ~np.isnan(theirs)  # random bytes of plain numbers are NaN at times
    assert ours.shape == theirs.shape and (np.isnan(ours) == ~sound).all() and sound.mean() > 0.9
    np.testing.assert_array_equal(ours.view(np.int32)[sound], theirs.view(np.int32)[sound])


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_K", "Q6_K"])
def test_scales_are_where_the_package_finds_them(kind):
    """A block whose scales are 0 stands for zeros, whatever its other bytes say."""
    raw = torch.from_numpy(random_rows(kind, 1, 1))
    assert dequantize_blocks(kind, raw).any()
    at = {"Q8_0": [0], "Q4_0": [0], "Q4_K": [0, 2], "Q6_K": [208]}[kind]
    for first in at:
        raw[0, first : first + 2] = 0
    assert not scales_of_blocks(kind, raw).any() and not dequantize_blocks(kind, raw).any()


def test_what_cannot_be_packed_gets_one_clear_line():
    with pytest.raises(
        ValueError, match=r"row of 48 weights does not divide into Q4_0 blocks of 32: use F16"
    ):
        quantize_blocks("Q4_0", torch.zeros(2, 48))
    bad = torch.zeros(2, 32)
    bad[1, 3] = float("nan")
    with pytest.raises(ValueError, match="NaN or infinite"):
        quantize_blocks("Q8_0", bad)
    with pytest.raises(ValueError, match="Q4_K is not written here: F32, F16, BF16, Q8_0, Q4_0 are"):
        quantize_blocks("Q4_K", torch.zeros(2, 256))
    with pytest.raises(ValueError, match="IQ1_S is not read here"):
        dequantize_blocks("IQ1_S", torch.zeros(1, 50, dtype=torch.uint8))
    assert set(PLAIN) < set(WRITABLE) < set(READABLE)
