"""A rank's part of a `Transformer`: some heads of some layers, and the communication with the other ranks.

A layer is split so that each device computes as much as possible alone:

    x, whole   ->   qkv: some heads      ->   attention   ->   out: the inputs of these heads   ->   a part of the sum
    x, whole   ->   up: some inner ones  ->   activation  ->   down: these inner ones as inputs ->   a part of the sum

The first matrix is split by its outputs (column parallel), the second by its inputs (row parallel). Between them no communication is
needed. After each second matrix an all-reduce adds up the parts. That makes two per layer, and one more after the embedding table.

The experts of a mixture take the place of the MLP. Each rank has the same x and the same router, so each knows
which tokens chose the experts that it holds. It computes these, and the same all-reduce adds up the results of the ranks.

(The terms are Megatron's, which writes a matrix as [in, out]. torch stores it as [out, in], so rows and columns are exchanged.)

Sources: Shoeybi et al., "Megatron-LM" (2019), section 3; vllm/model_executor/layers/fused_moe/runner/moe_runner.py;
vllm/model_executor/layers/minimax_rms_norm/rms_norm_tp.py, MiniMaxText01RMSNormTP (vLLM's OLMo gathers all heads instead).
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phase2_attention_kvcache.model import ModelConfig, Transformer
from phase2_attention_kvcache.model.layers import Experts, KVCache, RMSNorm
from phase5_real_gpu.parallel.collectives import Collectives
from phase5_real_gpu.parallel.placement import config_of_rank


class RowParallelLinear(nn.Linear):
    """A linear layer split by its inputs. Each rank multiplies its own inputs; the sum over all ranks is the result.

    The bias must be added once, not once per rank: it is added to the sum.
    """

    def __init__(self, inputs: int, outputs: int, bias: bool, collectives: Collectives) -> None:
        super().__init__(inputs, outputs, bias)
        self._collectives = collectives

    def forward(self, x: Tensor) -> Tensor:
        """x: [N, inputs of this rank] -> [N, outputs], the same on all ranks."""
        y = self._collectives.all_reduce(F.linear(x, self.weight))
        return y if self.bias is None else y + self.bias


class VocabParallelEmbedding(nn.Module):
    """An embedding table split by tokens. A rank looks up the tokens that it holds; the others give zeros, and an all-reduce adds up.

    Args:
        rows: tokens of this rank; the first one is `rows * tensor_rank`.
    """

    def __init__(self, rows: int, width: int, collectives: Collectives) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))
        self._collectives, self._first = collectives, rows * collectives.place.tensor_rank

    def forward(self, token_ids: Tensor) -> Tensor:
        """token_ids: [N] -> [N, width]."""
        local = token_ids - self._first
        elsewhere = (local < 0) | (local >= len(self.weight))
        x = F.embedding(local.masked_fill(elsewhere, 0), self.weight)
        return self._collectives.all_reduce(x.masked_fill(elsewhere[:, None], 0))


class ParallelRMSNorm(RMSNorm):
    """A norm over all heads of a token, of which each rank has some (OLMo). The all-reduce sums one number per token.

    Several ranks may hold the same KV head. Then every head is held equally often, and the mean is the same.
    """

    def __init__(self, size: int, eps: float, collectives: Collectives) -> None:
        super().__init__(size, eps)
        self._collectives = collectives

    def forward(self, x: Tensor) -> Tensor:
        """x: [N, 1, size of this rank] -> the same shape."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        means = self._collectives.all_reduce(wide.square().mean(-1, keepdim=True))
        mean = means / self._collectives.place.tensor_parallel_size
        return self.weight * (wide * torch.rsqrt(mean + self.eps)).to(x.dtype)


class ParallelExperts(Experts):
    """A rank's part of a mixture: slices of all experts, or some experts whole. Each rank adds up its results; the sum over all
    ranks is the result.

    Args:
        config: of this rank; every rank holds the whole router.
    """

    def __init__(self, config: ModelConfig, collectives: Collectives) -> None:
        super().__init__(config)
        self._collectives = collectives
        held = collectives.place.experts(config.num_experts)
        for expert in range(config.num_experts):
            if expert not in held:
                self.experts[expert] = None

    def dispatch(self, x: Tensor) -> Iterator[tuple[nn.Module, Tensor, Tensor]]:
        return (wanted for wanted in super().dispatch(x) if wanted[0] is not None)

    def forward(self, x: Tensor) -> Tensor:
        """x: [N, d_model] -> [N, d_model], the same on all ranks."""
        return self._collectives.all_reduce(super().forward(x))


class ShardedTransformer(Transformer):
    """A rank's part of a model. All ranks call it for the same tokens; each has its own cache for its KV heads.

    With several stages a tied embedding table is held twice: the first stage embeds with it, the last stage computes logits.

    Args:
        config: of the whole model.
    """

    def __init__(self, config: ModelConfig, collectives: Collectives) -> None:
        place = collectives.place
        super().__init__(config_of_rank(config, place))
        self.whole_config, self._collectives = config, collectives
        if place.tensor_parallel_size > 1:
            for block in self.blocks:
                block.attention.out = self._cut(block.attention.out)
                if config.choices.qk_norm == "row":
                    block.attention.q_norm = self._cut_norm(block.attention.q_norm)
                    block.attention.k_norm = self._cut_norm(block.attention.k_norm)
                if config.choices.mixture:
                    block.mlp = ParallelExperts(self.config, collectives)
                else:
                    block.mlp.down = self._cut(block.mlp.down)
            self.token_table = VocabParallelEmbedding(*self.token_table.weight.shape, collectives)
        if not place.is_first:
            self.position_table = None
            if not (place.is_last and config.tied):
                self.token_table = None
        if not place.is_last:
            self.head = None

    def _cut(self, whole: nn.Linear) -> RowParallelLinear:
        return RowParallelLinear(
            whole.in_features, whole.out_features, whole.bias is not None, self._collectives
        )

    def _cut_norm(self, norm: RMSNorm) -> ParallelRMSNorm:
        return ParallelRMSNorm(len(norm.weight), norm.eps, self._collectives)

    def forward(self, token_ids: Tensor, positions: Tensor, kv: KVCache) -> Tensor:
        """Run this stage's blocks. Arguments as in `Transformer`.

        Returns:
            [N, d_model]. In the last stage after the last norm; in the others the vectors that were sent to the next stage.
        """
        place = self._collectives.place
        if place.is_first:
            x = self.embed(token_ids, positions)
        else:
            x = torch.empty(len(token_ids), self.config.d_model, dtype=self.dtype, device=self.device)
            self._collectives.receive(x)
        x = self.blocks(x, self.rotary(positions), kv)
        if place.is_last:
            return self.final_norm(x)
        self._collectives.send(x)
        return x

    def logits(self, hidden: Tensor) -> Tensor | None:
        """hidden [N, d_model] -> [N, vocab_size] on the last stage's first rank; None on its other ranks."""
        parts = self._collectives.gather(super().logits(hidden))
        return None if parts is None else torch.cat(parts, dim=1)[:, : self.whole_config.vocab_size]
