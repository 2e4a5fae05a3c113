"""Steps for the kernels (see `tests/paged_case.py`).

Everything here runs where the kernels run: compiled on a GPU, in Triton's interpreter without one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from phase5_real_gpu.kernels import paged_decode, paged_prefill
from phase5_real_gpu.kernels.gpu_runner import Recording
from phase5_real_gpu.kernels.triton_setup import HAS_TRITON, INTERPRETED, card_problem
from tests.paged_case import TOLERANCE, PagedCase, assert_near, bits, model_config
from tests.properties import plain_attention

DEVICE = "cuda" if HAS_TRITON and not INTERPRETED else "cpu"
# Of bfloat16 the interpreter proves addresses, and no more: it multiplies in float32, and cuts off.
DTYPES = [t for t in (torch.float32, torch.float16, torch.bfloat16) if not card_problem(t)]
FP8 = torch.float8_e4m3fn


@dataclass
class KernelCase(PagedCase):
    """A step for the kernels, on their device."""

    device: str = DEVICE

    def __post_init__(self) -> None:
        if problem := card_problem(self.cache_dtype or self.dtype):
            pytest.skip(problem)
        super().__post_init__()
        # The model cuts q, k, v out of one tensor, and tables may be wider than a step needs: rows have gaps in memory.
        self.q = torch.cat([self.q, self.q.new_full((len(self.q), 1, self.dim), math.nan)], 1)[:, :-1]

    def block_tables(self, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.nn.functional.pad(super().block_tables(dtype), (0, 5), value=-1)[:, :-5]

    def decode(self, **options) -> Tensor:
        step = self.q, self.k_cache, self.v_cache, self.block_tables(), self.lens()
        return paged_decode(*step, window=self.window, softcap=self.softcap, **options)

    def prefill(self, **options) -> Tensor:
        tables = self.block_tables(), self.cu_query_lens, self.lens()
        step = self.q, self.k_cache, self.v_cache, *tables
        return paged_prefill(*step, window=self.window, softcap=self.softcap, **options)


def decode_case(context_lens: Sequence[int], **settings) -> KernelCase:
    """One new token a request."""
    return KernelCase([1] * len(context_lens), context_lens, **settings).fill()


def repeat_in_python(step: Callable[[], Tensor]) -> Recording:
    """What a CUDA graph does, without a GPU."""
    recording = Recording(lambda: recording.result.copy_(step()), step())
    return recording


@pytest.fixture(scope="session")
def lab() -> SimpleNamespace:
    """What the test files of this folder share."""
    shared = (decode_case, model_config, plain_attention, assert_near, bits)
    names = {f.__name__: f for f in shared}
    return SimpleNamespace(
        Case=KernelCase, paged_case=KernelCase.of, device=DEVICE, tolerance=TOLERANCE, **names
    )


@pytest.fixture
def inputs(lab) -> dict[str, dict[str, Tensor]]:
    """Keyword arguments of calls that work, by the kernel's name."""

    def attention(case: KernelCase) -> dict[str, Tensor]:
        tables = dict(block_tables=case.block_tables(), context_lens=case.lens())
        return dict(q=case.q, k_cache=case.k_cache, v_cache=case.v_cache) | tables

    prompts, new = lab.paged_case([(15, 5), (0, 7)]), lab.Case([5, 7], [20, 7])
    k, v = (new.new(texts) for texts in new.given)
    return dict(
        paged_decode=attention(lab.decode_case([20, 7])),
        paged_prefill=attention(prompts) | dict(cu_query_lens=prompts.cu_query_lens),
        write_kv=dict(k=k, v=v, k_cache=new.k_cache, v_cache=new.v_cache, slot_mapping=new.new_slots),
    )
