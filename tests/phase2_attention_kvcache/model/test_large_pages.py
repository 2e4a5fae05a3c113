"""Memory in large pages is memory like any other."""

import sys
from pathlib import Path

import pytest
import torch

from phase2_attention_kvcache.model.large_pages import PAGE, empty_in_large_pages


def flags_of(tensor):
    """What Linux says of the mapping in which a tensor lies."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first:
            begin, end = (int(part, 16) for part in first.split("-"))
            inside = begin <= tensor.data_ptr() < end
        elif inside and first == "VmFlags:":
            return rest.split()
    raise AssertionError("a tensor lies nowhere")


@pytest.mark.parametrize("shape", [(0, 3), (5, 7), (3, PAGE // 2 + 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_it_can_be_written_and_read(shape, dtype):
    tensor = empty_in_large_pages(shape, dtype)
    assert tensor.shape == shape and tensor.dtype == dtype and tensor.data_ptr() % 64 == 0
    numbers = torch.arange(tensor.numel()).view(shape).to(dtype)
    assert torch.equal(tensor.copy_(numbers), numbers)


@pytest.mark.skipif(sys.platform != "linux", reason="large pages are asked for on Linux")
@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this Linux has no large pages"
)
def test_the_system_was_asked_for_large_pages():
    large, small = empty_in_large_pages((2 * PAGE,), torch.uint8), torch.empty(2 * PAGE, dtype=torch.uint8)
    assert "hg" in flags_of(large) and "hg" not in flags_of(small)


@pytest.mark.parametrize("size", [1 << 50, 1 << 62])
def test_too_much_is_told_as_torch_tells_it(size):
    with pytest.raises(RuntimeError, match="memory"):
        empty_in_large_pages((size,), torch.uint8)


def test_without_large_pages_it_is_torchs_own_memory(monkeypatch):
    monkeypatch.delattr("mmap.MADV_HUGEPAGE", raising=False)
    assert empty_in_large_pages((2 * PAGE,), torch.uint8).shape == (2 * PAGE,)
