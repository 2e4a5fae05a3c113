"""Answers to p2e5_cache: right ones, and mistakes by the diagnosis they must get."""

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


class Growing:
    """Tensors that grow, in a dictionary; a copy at each call, which is slow and right."""

    def __init__(self, num_layers, room, num_kv_heads, head_dim):
        self.room, self.kv = room, {}

    def append(self, layer, k, v):
        old_k, old_v = self.kv.get(layer, (k[:0], v[:0]))
        if old_k.size(0) + k.size(0) > self.room:
            raise ValueError(f"{old_k.size(0) + k.size(0)} > {self.room}")
        self.kv[layer] = [torch.cat([old_k, k]), torch.cat([old_v, v])]
        return self.kv[layer]


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


START, END = "start = self.lengths[layer]", "self.lengths[layer] = end"
STORE_KEYS, STORE_VALUES = "self.keys[layer, start:end] = k", "self.values[layer, start:end] = v"
PAIR = "self.keys[layer, :end], self.values[layer, :end]"
ROOM = "self.keys.shape[1]"
RIGHT = [
    TokenByToken,
    Growing,
    {PAIR: f"torch.stack(({PAIR}))"},
    # One counter will do, if only the last layer moves it.
    {START: "start = self.lengths[0]", END: "self.lengths[0] += len(k) * (layer == len(self.keys) - 1)"},
]
WRONG = {
    "cache-one-counter-for-all-layers": [
        {"self.lengths = [0] * num_layers": "self.length = 0", "self.lengths[layer]": "self.length"},
        {START: "start = self.lengths[0]", END: "self.lengths[0] += len(k) * (layer == 0)"},
    ],
    "cache-layers-mixed": [
        {"[layer, start:end]": "[0, start:end]", "[layer, :end]": "[0, :end]"},
        {"[layer, start:end]": "[:, start:end]"},
    ],
    "cache-only-the-new": {"[layer, :end]": "[layer, start:end]"},
    "cache-new-missing": {"[layer, :end]": "[layer, : start or end]"},
    "cache-length-not-updated": [{END: "pass"}, {END: "self.lengths[layer] += 1"}],
    "cache-overwrites": {"[layer, start:end]": "[layer, : len(k)]"},
    "cache-new-in-the-wrong-place": {
        STORE_KEYS: "at = slice(-len(k), None) if start else slice(end)\n        self.keys[layer, at] = k",
        STORE_VALUES: "self.values[layer, at] = v",
    },
    "cache-new-in-front": {
        STORE_KEYS: "self.keys[layer, :end] = torch.cat((k, self.keys[layer, :start]))",
        STORE_VALUES: "self.values[layer, :end] = torch.cat((v, self.values[layer, :start]))",
    },
    "cache-returns-its-room": {"[layer, :end]": "[layer]"},
    "cache-last-missing": {"[layer, :end]": "[layer, : end - 1]"},
    "cache-exchanged": {PAIR: "self.values[layer, :end], self.keys[layer, :end]"},
    "cache-values-wrong": {"= v\n": "= k\n"},
    "cache-keys-wrong": {"= k\n": "= v\n"},
    "cache-wrong-type": {", self.values[layer, :end]": ""},
    "cache-full-unnoticed": [
        {f"end > {ROOM}": "False"},
        {
            "end = start + len(k)": f"end = min(start + len(k), {ROOM})",
            "= k\n": "= k[: end - start]\n",
            "= v\n": "= v[: end - start]\n",
        },
    ],
    "cache-half-stored": [
        {
            f"if end > {ROOM}:": f"""if end > {ROOM}:
            fit = {ROOM} - start
            self.keys[layer, start:], self.values[layer, start:] = k[:fit], v[:fit]
            self.lengths[layer] += fit"""
        },
        {START: f"{START}\n        self.lengths[layer] += len(k)"},
    ],
    "cache-full-too-early": [{"end > self": "end >= self"}, {f"end > {ROOM}": "end > len(self.keys)"}],
    "cache-borrows-memory": [
        Lists,
        changed(Lists, {"append(k)": "append(k.clone())"}),
        changed(Lists, {"append(v)": "append(v.clone())"}),
    ],
}
