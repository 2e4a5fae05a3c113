"""Two caches for one sequence: `NoCache` stores nothing, `ContiguousKVCache` stores every key and value.

Phase 3 adds a cache in blocks for many sequences, phase 5 one for a GPU. All have the method `attend`, so the model never
changes.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from phase2_attention_kvcache.model.attention import attention
from phase2_attention_kvcache.model.config import ModelConfig


class AttentionRule(NamedTuple):
    """How a layer attends: `scale`, `window` and `softcap` of `attention.attention`."""

    scale: float
    window: int | None = None
    softcap: float | None = None

    def first_seen(self, position: int) -> int:
        """The first token that the query at this position attends to."""
        return 0 if self.window is None else max(0, position - self.window + 1)


def attention_rules(config: ModelConfig) -> list[AttentionRule]:
    """The rule of each layer."""
    layers = range(config.num_layers)
    return [AttentionRule(config.attention_scale, config.window(i), config.attn_softcap) for i in layers]


def fused_attention(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    """`F.scaled_dot_product_attention`. On a GPU cuDNN is excluded: it makes a plan for each new length, so for every token."""
    if not q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, **how)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        return F.scaled_dot_product_attention(q, k, v, **how)


def causal_attention(q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule | None = None) -> Tensor:
    """The same as `attention.attention`, through PyTorch's fused function.

    The queries are the last N of M tokens; each attends to itself and to the tokens before it, as far
    as the window reaches. The fused function never writes the [N, M] weights to memory, which would take most of the time.

    Args:
        q: [N, num_heads, head_dim], or of P sequences [P, N, num_heads, head_dim]. The result has its shape.
        k, v: [M, num_kv_heads, head_dim] or [P, M, num_kv_heads, head_dim], M >= N.
        rule: None: the scale is 1 / sqrt(head_dim), and there is no window and no soft cap.
    """
    if q.dim() == 3:
        return causal_attention(q[None], k[None], v[None], rule)[0]
    scale, window, softcap = rule or AttentionRule(q.shape[-1] ** -0.5)
    sequences, n, num_heads, head_dim = q.shape
    if window is not None:  # tokens before the first query's window are in no window
        k, v = k[:, -(n + window - 1) :], v[:, -(n + window - 1) :]
    if softcap is not None:  # the fused function knows none
        how = dict(scale=scale, window=window, softcap=softcap)
        return torch.stack([attention(*one, **how) for one in zip(q, k, v, strict=True)])
    m, num_kv_heads = k.shape[1:3]
    keys, values = k.transpose(1, 2), v.transpose(1, 2)  # [P, num_kv_heads, M, head_dim]
    if n == 1:
        # One token sees all keys: no mask. The heads that share a KV head become rows of one query,
        # so the shared keys are read once for all of them.
        rows = q.view(sequences, num_kv_heads, num_heads // num_kv_heads, head_dim)
        return fused_attention(rows, keys, values, scale=scale).reshape(q.shape)
    how = dict(scale=scale, enable_gqa=num_heads != num_kv_heads)
    if n == m and (window is None or m <= window):
        how["is_causal"] = True
    else:
        sees = torch.ones(n, m, dtype=torch.bool, device=q.device).tril(diagonal=m - n)
        how["attn_mask"] = sees if window is None else sees.triu(diagonal=m - n - window + 1)
    return fused_attention(q.transpose(1, 2), keys, values, **how).transpose(1, 2)


class NoCache:
    """Stores nothing: a call must contain the whole sequence from its first token.

    Args:
        config: that of the model; None: a model without windows, soft cap or scale of its own (GPT-2, Llama).
    """

    def __init__(self, config: ModelConfig | None = None) -> None:
        self._rules = None if config is None else attention_rules(config)

    def check(self, config: ModelConfig) -> None:
        """Raise a ValueError if its rules of attention are not those of this model."""
        plain = [AttentionRule(config.head_dim**-0.5)] * config.num_layers
        if (self._rules or plain) != attention_rules(config):
            raise ValueError("this model's layers attend in ways of their own: give NoCache(model.config)")

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return causal_attention(q, k, v, self._rules and self._rules[layer])


class ContiguousKVCache:
    """Stores the keys and values of one sequence, up to the model's context, in one growing tensor per layer.

    The capacity doubles when it is used up, so that the average cost of adding a token does not depend
    on the length of the sequence. (Growing by one token each time would copy the whole cache at each step.)
    """

    FIRST_ROOM = 64  # tokens

    def __init__(self, config: ModelConfig) -> None:
        self.max_tokens = config.max_context
        self._rules = attention_rules(config)
        self._lengths = [0] * config.num_layers  # while a step runs, early layers are ahead of late ones
        self._kv: list[Tensor | None] = [None] * config.num_layers  # [2, room, num_kv_heads, head_dim]

    @property
    def num_tokens(self) -> int:
        """Tokens whose keys and values are stored in every layer."""
        return self._lengths[-1]

    @property
    def bytes_used(self) -> int:
        """Bytes that hold keys and values."""
        stored = zip(self._lengths, self._kv, strict=True)
        return sum(kv[:, :length].nbytes for length, kv in stored if kv is not None)

    @property
    def bytes_reserved(self) -> int:
        """Bytes allocated, including those for later tokens."""
        return sum(kv.nbytes for kv in self._kv if kv is not None)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Append k and v of the new tokens, then compute the attention of the new tokens."""
        return causal_attention(q, *self.append(layer, k, v), self._rules[layer])

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of N new tokens, [N, num_kv_heads, head_dim] each.

        Returns:
            keys and values of all tokens so far, [M, num_kv_heads, head_dim] each.

        Raises:
            ValueError: the context is full; then nothing is stored.
        """
        start = self._lengths[layer]
        end = start + len(k)
        kv = self._with_room(layer, end, k)
        kv[0, start:end], kv[1, start:end] = k, v
        self._lengths[layer] = end
        return kv[0, :end], kv[1, :end]

    def _with_room(self, layer: int, needed: int, like: Tensor) -> Tensor:
        kv = self._kv[layer]
        held = 0 if kv is None else kv.shape[1]
        if kv is not None and needed <= held:
            return kv
        if needed > self.max_tokens:
            raise ValueError(f"the KV cache is full: {needed} tokens asked for, it holds {self.max_tokens}")
        room = min(max(needed, 2 * held, self.FIRST_ROOM), self.max_tokens)
        wider = self._kv[layer] = like.new_empty(2, room, *like.shape[1:])
        if kv is not None:
            wider[:, :held] = kv
        return wider
