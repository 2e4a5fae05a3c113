"""Keys and values: how much memory they take, for one user in one piece, and for many users in blocks."""

import torch
from torch import Tensor

from exercises.capstone.parts import course_part

from .model import Model, attention

kv_bytes, users_that_fit = course_part("p1e5_kv_bytes")
Cache = course_part("p2e5_cache")
slots = course_part("p3e2_block_table")


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
