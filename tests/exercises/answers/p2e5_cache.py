import torch

from tests.exercises.changed import changed


class TokenByToken:
    def __init__(self, num_layers, room, num_kv_heads, head_dim):
        self.keys = torch.empty(num_layers, room, num_kv_heads, head_dim)
        self.values = torch.empty(num_layers, room, num_kv_heads, head_dim)
        self.lengths = [0] * num_layers

    def append(self, layer, k, v):
        if self.lengths[layer] + len(k) > self.keys.shape[1]:
            raise ValueError("full")
        for key, value in zip(k, v):
            self.keys[layer][self.lengths[layer]] = key
            self.values[layer][self.lengths[layer]] = value
            self.lengths[layer] += 1
        return self.keys[layer][: self.lengths[layer]], self.values[layer][: self.lengths[layer]]


class Lists:
    """Keeps the very tensors that it was given."""

    def __init__(self, num_layers, room, num_kv_heads, head_dim):
        self.room = room
        self.kv = [([], []) for _ in range(num_layers)]

    def append(self, layer, k, v):
        keys, values = self.kv[layer]
        if sum(map(len, keys)) + len(k) > self.room:
            raise ValueError("full")
        keys.append(k)
        values.append(v)
        return torch.cat(keys), torch.cat(values)


PAIR, ROOM = "self.keys[layer, :end], self.values[layer, :end]", "self.keys.shape[1]"
RIGHT = [
    TokenByToken,
    {PAIR: f"torch.stack(({PAIR}))"},
    # One counter will do, if only the last layer moves it.
    {
        "start = self.lengths[layer]": "start = self.lengths[0]",
        "self.lengths[layer] = end": "self.lengths[0] += len(k) * (layer == len(self.keys) - 1)",
    },
]
WRONG = {
    "cache-wrong-type": {", self.values[layer, :end]": ""},
    "cache-full-unnoticed": {
        "end = start + len(k)": f"end = min(start + len(k), {ROOM})",
        "= k\n": "= k[: end - start]\n",
        "= v\n": "= v[: end - start]\n",
    },
    "cache-borrows-memory": [
        Lists,
        changed(Lists, {"append(k)": "append(k.clone())"}),
        changed(Lists, {"append(v)": "append(v.clone())"}),
    ],
}
