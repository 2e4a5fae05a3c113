"""What the heads of a model compute, recorded by an object in place of the cache."""

from collections.abc import Sequence

import torch
from torch import Tensor

from phase2_attention_kvcache.model import ModelConfig, NoCache, Transformer
from phase2_attention_kvcache.model.attention import attention_weights
from phase2_attention_kvcache.model.caches import attention_rules


class Watching(NoCache):
    """Stores `seen`: queries [N, num_heads, head_dim], keys and values [N, num_kv_heads, head_dim] of each layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.seen.append((q, k, v))
        return super().attend(layer, q, k, v)


@torch.inference_mode()
def watch(model: Transformer, token_ids: Sequence[int]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Queries, keys and values of each layer for some tokens, see `Watching`."""
    watching = Watching(model.config)
    model(torch.tensor(token_ids), torch.arange(len(token_ids)), watching)
    return watching.seen


@torch.inference_mode()
def weights_of(model: Transformer, token_ids: Sequence[int]) -> list[Tensor]:
    """The attention weights of every head, [num_heads, N, N] for each layer."""
    return [
        attention_weights(q, k, scale=rule.scale, window=rule.window, softcap=rule.softcap)
        for (q, k, _), rule in zip(watch(model, token_ids), attention_rules(model.config), strict=True)
    ]
