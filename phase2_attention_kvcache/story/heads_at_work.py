"""The attention weights of a model's heads, recorded by an object in place of the cache."""

from collections.abc import Sequence

import torch
from torch import Tensor

from phase2_attention_kvcache.model import ModelConfig, NoCache, Transformer
from phase2_attention_kvcache.model.attention import attention_weights
from phase2_attention_kvcache.model.caches import attention_rules


class Watching(NoCache):
    """Remembers nothing but `weights`: of each layer [num_heads, N, N]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.rules, self.weights = attention_rules(config), []

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rule = self.rules[layer]
        self.weights.append(
            attention_weights(q, k, scale=rule.scale, window=rule.window, softcap=rule.softcap)
        )
        return super().attend(layer, q, k, v)


@torch.inference_mode()
def weights_of(model: Transformer, token_ids: Sequence[int]) -> list[Tensor]:
    """The attention weights of every head, [num_heads, N, N] for each layer."""
    watching = Watching(model.config)
    model(torch.tensor(token_ids), torch.arange(len(token_ids)), watching)
    return watching.weights
