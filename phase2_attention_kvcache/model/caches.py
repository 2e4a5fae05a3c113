"""Two objects that can stand behind the model: one remembers nothing, one remembers every key and value.

Both hold one sequence. Phase 3 brings a cache in blocks for many sequences, phase 5 one for a GPU; all
have the same method `attend`, so the model never changes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from phase2_attention_kvcache.model.config import ModelConfig

# Of the ways a GPU has for fused attention, cuDNN's makes a plan for each new length. Here every token has a new one.
torch.backends.cuda.enable_cudnn_sdp(False)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same as `attention.attention`, through PyTorch's fused function.

    The queries are the last N of M tokens; each sees itself and everything before it. The fused
    function never writes the [N, M] table of weights to memory, which is where the time would go.

    Args:
        q: [N, num_heads, head_dim]. k, v: [M, num_kv_heads, head_dim], M >= N.

    Returns:
        [N, num_heads, head_dim].
    """
    n, num_heads, head_dim = q.shape
    m, num_kv_heads, _ = k.shape
    keys, values = k.transpose(0, 1)[None], v.transpose(0, 1)[None]  # [1, num_kv_heads, M, head_dim]
    if n == 1:
        # One token sees all keys: no mask. The heads that share a KV head become rows of one query,
        # so the shared keys are read once for all of them.
        rows = q.view(1, num_kv_heads, num_heads // num_kv_heads, head_dim)
        return F.scaled_dot_product_attention(rows, keys, values).view(1, num_heads, head_dim)
    queries = q.transpose(0, 1)[None]
    grouped = num_heads != num_kv_heads
    if n == m:
        out = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=grouped)
    else:
        sees = torch.ones(n, m, dtype=torch.bool, device=q.device).tril(diagonal=m - n)
        out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=sees, enable_gqa=grouped)
    return out[0].transpose(0, 1)


class NoCache:
    """Remembers nothing: a call must bring the whole sequence from its first token."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return causal_attention(q, k, v)


class ContiguousKVCache:
    """Remembers the keys and values of one sequence, in one growing tensor a layer.

    Room doubles when it is used up, so that adding a token costs the same on average however long
    the sequence is. (Growing by one token each time would copy the whole cache at each step.)

    It holds as many tokens as the model's context.
    """

    FIRST_ROOM = 64  # tokens

    def __init__(self, config: ModelConfig) -> None:
        self.max_tokens = config.max_context
        self._lengths = [0] * config.num_layers  # while a step runs, early layers are ahead of late ones
        self._keys: list[Tensor | None] = [None] * config.num_layers  # [room, num_kv_heads, head_dim]
        self._values: list[Tensor | None] = [None] * config.num_layers

    @property
    def num_tokens(self) -> int:
        """Tokens whose keys and values are stored in every layer."""
        return self._lengths[-1]

    @property
    def bytes_used(self) -> int:
        """Bytes that hold keys and values."""
        stored = zip(self._lengths, self._keys, strict=True)
        return sum(2 * length * keys[0].nbytes for length, keys in stored if keys is not None)

    @property
    def bytes_reserved(self) -> int:
        """Bytes taken from the machine, room for tokens to come included."""
        return sum(2 * keys.nbytes for keys in self._keys if keys is not None)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Append k and v of the new tokens, then attend from the new tokens to all."""
        return causal_attention(q, *self.append(layer, k, v))

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of N new tokens.

        Args:
            k, v: [N, num_kv_heads, head_dim].

        Returns:
            keys and values of all tokens so far, [M, num_kv_heads, head_dim] each.

        Raises:
            ValueError: no room left. Nothing is stored then.
        """
        start = self._lengths[layer]
        end = start + len(k)
        keys, values = self._with_room(layer, end, k)
        keys[start:end] = k
        values[start:end] = v
        self._lengths[layer] = end
        return keys[:end], values[:end]

    def _with_room(self, layer: int, needed: int, like: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self._keys[layer], self._values[layer]
        if keys is not None and values is not None and needed <= len(keys):
            return keys, values
        if needed > self.max_tokens:
            raise ValueError(f"the KV cache is full: {needed} tokens asked for, it holds {self.max_tokens}")
        room = max(needed, self.FIRST_ROOM) if keys is None else max(needed, 2 * len(keys))
        room = min(room, self.max_tokens)
        new_keys, new_values = (like.new_empty(room, *like.shape[1:]) for _ in range(2))
        if keys is not None and values is not None:
            new_keys[: len(keys)], new_values[: len(values)] = keys, values
        self._keys[layer], self._values[layer] = new_keys, new_values
        return new_keys, new_values
