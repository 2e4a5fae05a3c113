"""Keys and values: how much memory they take, for one user in one piece, and for many users in blocks."""

import torch
from torch import Tensor

from .model import Model, attention


def kv_bytes(config: dict, bytes_per_number: int = 2) -> int:
    """Bytes of KV cache for one token, from the fields of a config.json."""
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return 2 * config["num_hidden_layers"] * kv_heads * head_dim * bytes_per_number


def users_that_fit(card_bytes: int, weight_bytes: int, bytes_per_token: int, tokens_per_user: int) -> int:
    """How many users fit at the same time: a whole number, 0 if not even the weights fit."""
    return max(0, card_bytes - weight_bytes) // (bytes_per_token * tokens_per_user)


class Cache:
    """Keys and values of one sequence, in all layers."""

    def __init__(self, num_layers: int, room: int, num_kv_heads: int, head_dim: int) -> None:
        self.keys = torch.empty(num_layers, room, num_kv_heads, head_dim)
        self.values = torch.empty(num_layers, room, num_kv_heads, head_dim)
        self.lengths = [0] * num_layers  # tokens stored in each layer

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store those of N new tokens of a layer, [N, num_kv_heads, head_dim]; return those of all M tokens so far."""
        start = self.lengths[layer]
        end = start + len(k)
        if end > self.keys.shape[1]:
            raise ValueError(f"{end} tokens do not fit: there is room for {self.keys.shape[1]}")
        self.keys[layer, start:end] = k
        self.values[layer, start:end] = v
        self.lengths[layer] = end
        return self.keys[layer, :end], self.values[layer, :end]


def slots(block_table: list[int], first: int, num_tokens: int, block_size: int) -> list[int]:
    """Slots of tokens first, first + 1, ...: where in the memory their keys and values are stored."""
    found = []
    for token in range(first, first + num_tokens):
        physical = block_table[token // block_size]
        found.append(physical * block_size + token % block_size)
    return found


@torch.inference_mode()
def write_alone(model: Model, prompt_ids: list[int], max_tokens: int) -> list[int]:
    """The answer to one user who has the model to herself, greedily, with a cache in one piece."""
    cache = Cache(model.num_layers, len(prompt_ids) + max_tokens, model.num_heads, model.head_dim)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, *cache.append(layer, k, v))

    answer, new, first = [], list(prompt_ids), 0
    while len(answer) < max_tokens:
        positions = torch.arange(first, first + len(new))
        hidden = model.forward(torch.tensor(new), positions, attend)
        first += len(new)
        new = [int(model.logits(hidden[-1:]).argmax())]
        answer += new
        if new[0] == model.eos_token_id:
            break
    return answer


class PagedCache:
    """Keys and values of many requests, in blocks: [num_layers, slots, num_heads, head_dim] each."""

    def __init__(self, model: Model, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        shape = (model.num_layers, num_blocks * block_size, model.num_heads, model.head_dim)
        self.keys, self.values = torch.empty(shape), torch.empty(shape)

    def begin_step(self, parts: list[tuple[list[int], int, int]]) -> None:
        """Say of each request its block table, the number of its first new token, and how many are new."""
        size, new, self.rows, start = self.block_size, [], [], 0
        for table, first, n in parts:
            new += [int(slot) for slot in slots(table, first, n, size)]
            seen = torch.tensor([int(slot) for slot in slots(table, 0, first + n, size)])
            self.rows.append((slice(start, start + n), seen))
            start += n
        self.new_slots = torch.tensor(new)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the new keys and values, all of them before any is read; attend for each request by itself."""
        keys, values = self.keys[layer], self.values[layer]
        keys[self.new_slots], values[self.new_slots] = k, v
        return torch.cat([attention(q[rows], keys[seen], values[seen]) for rows, seen in self.rows])
