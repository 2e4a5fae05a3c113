"""The roofline's count of operations, against PyTorch's own counter; its ceilings and its script."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from phase2_attention_kvcache.measuring import roofline
from phase2_attention_kvcache.measuring.roofline import (
    Ceilings,
    Step,
    Work,
    matrix_bytes,
    work_of_batch,
    work_of_step,
)
from phase2_attention_kvcache.model.caches import ContiguousKVCache
from phase2_attention_kvcache.model.transformer import Transformer
from phase2_attention_kvcache.quantization.quantized_linear import quantize_model


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize(("new", "older"), [(1, 0), (7, 0), (40, 0), (1, 50), (7, 30)])
def test_operations_are_those_that_pytorch_counts_and_those_of_attention(
    make_llama, make_gpt2, family, new, older
):
    folder, _ = make_llama() if family == "llama" else make_gpt2()
    model = Transformer.from_pretrained(folder)

    class NoAttention:
        def attend(self, layer, q, k, v):
            return q

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.logits(model(torch.arange(new), torch.arange(new), NoAttention())[-1:])
    c = model.config
    pairs = new * older + new * (new + 1) // 2
    attention_operations = 4 * c.num_layers * c.num_heads * c.head_dim * pairs
    assert work_of_step(c, new, older, 4).operations - attention_operations == counter.get_total_flops()


def test_bytes_are_the_weights_and_the_cache():
    model = Transformer.from_pretrained("tales")
    c = model.config
    matrices = sum(p.nbytes for n, p in model.named_parameters() if p.ndim == 2 and "position" not in n)
    assert work_of_step(c, 1, 0, 4).bytes == matrices + 2 * c.num_layers * c.d_model * 4
    cache = ContiguousKVCache(c)
    model(torch.arange(100), torch.arange(100), cache)
    assert work_of_step(c, 1, 99, 4).bytes == matrices + cache.bytes_used


@pytest.mark.parametrize(
    ("seconds", "overhead", "limit"),
    [((1.0, 1.2), 0.1, "memory"), ((1.0, 1.2), 0.8, "overhead"), ((1.0, 15.0), 0.1, "arithmetic")],
)
def test_what_limits_a_step_is_told_from_its_times(seconds, overhead, limit):
    work = Work(operations=1.0, bytes=1.0)
    small, large = (Step(n, work, 0.0, s) for n, s in zip((1, 16), seconds, strict=True))
    assert roofline.limit_of(small, large, Ceilings(1.0, 1.0), overhead)[0] == limit


def test_bytes_of_the_matrices_are_those_in_memory():
    """1 byte and its share of a scale in 8 bits."""
    model = Transformer.from_pretrained("tales", "bfloat16")
    entries = work_of_step(model.config, 0, 0, 1).bytes
    assert matrix_bytes(model) == 2 * entries
    q8_0 = quantize_model(Transformer.from_pretrained("tales", "bfloat16"), "q8_0")
    assert matrix_bytes(q8_0) == entries * 34 / 32  # 32 entries share a scale of 2 bytes
    step = work_of_batch(q8_0.config, [(10, 1)], 2, matrix_bytes(q8_0))
    kv = 2 * q8_0.config.num_layers * q8_0.config.d_model * 2
    assert step.bytes == entries * 34 / 32 + 11 * kv and step.written == kv
