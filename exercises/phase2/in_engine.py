"""The way into the engine for phase 2: a cache that calls the learner's attention; a model with outliers."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from exercises.judging.engine_runs import tales
from exercises.phase2.unknown_models import large_weights
from phase2_attention_kvcache.model import ModelConfig, SamplingParams, Transformer
from phase3_paged_attention.paging import PagedKVCache
from phase4_scheduler.engine import EngineConfig, LLMEngine

BLOCKS, BLOCK_SIZE, LONGEST = 24, 16, 96


class YourAttention(PagedKVCache):
    """The engine's paged cache, with attention by `attend(q, k, v)`, called for each request by itself."""

    def __init__(self, config: ModelConfig, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__(config, BLOCKS, BLOCK_SIZE, use_kernel=False)
        self.your_attend = attend

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        layout, out, start = self.layout, torch.empty_like(q), 0
        self.storage.write(layer, layout.slot_mapping, k, v)
        for table, new, length in zip(
            layout.block_tables, layout.query_lens, layout.context_lens, strict=True
        ):
            blocks = torch.tensor(table[: -(-length // BLOCK_SIZE)])
            keys, values = self.storage.gather(layer, blocks, length)
            out[start : start + new] = self.your_attend(q[start : start + new], keys, values)
            start += new
        return out


def tokens_of(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    kv_cache: PagedKVCache | None = None,
    max_tokens: int = 16,
) -> list[list[int]]:
    """What the engine writes. Long prompts come in chunks of 8 tokens.

    Args:
        kv_cache: `YourAttention(...)`; None: the course's own.
    """
    config = EngineConfig(
        max_num_seqs=4, max_num_batched_tokens=8, num_blocks=BLOCKS, block_size=BLOCK_SIZE,
        max_model_len=LONGEST, enable_prefix_caching=False,
    )  # fmt: skip
    kv_cache = kv_cache or PagedKVCache(model.config, BLOCKS, BLOCK_SIZE, use_kernel=False)
    engine = LLMEngine(model, None, config, kv_cache=kv_cache)
    greedy = SamplingParams(temperature=0, max_tokens=max_tokens)
    return [output.token_ids for output in engine.generate(list(prompts), greedy)]


def small_llama() -> Transformer:
    """A Llama of random weights: 8 query heads, 2 KV heads, rotary positions. Its text is noise, but always the same."""
    config = ModelConfig(
        name="small", family="llama", vocab_size=512, d_model=64, num_layers=2, num_heads=8, num_kv_heads=2,
        head_dim=8, d_ff=128, max_context=256, tied=False, attention_bias=False, mlp_bias=False,
    )  # fmt: skip
    return large_weights(Transformer.random(config, seed=3))


def with_an_outlier(change: Callable[[Tensor], Tensor], column: int = 77, times: int = 256) -> Transformer:
    """`tales` with a column of very large weights in each matrix behind a norm, and these matrices changed by `change`.

    The norm makes the column's input as much smaller as its weights are larger. Both are multiplied by a power of two,
    so without a change the model computes exactly what it did.
    """
    model = copy.deepcopy(tales()[0])
    with torch.no_grad():
        for block in model.blocks:
            for norm, layer in ((block.attention_norm, block.attention.qkv), (block.mlp_norm, block.mlp.up)):
                norm.weight[column] /= times
                norm.bias[column] /= times
                layer.weight[:, column] *= times
                layer.weight.copy_(change(layer.weight.detach().clone()))
    return model
