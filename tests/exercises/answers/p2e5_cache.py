"""Answers to p2e5_cache: right ones, and mistakes by the diagnosis they must get."""

import torch

from tests.exercises.changed import changed


class Stub:
    """The beginning of the class, as the notebook gives it."""

    def __init__(self, num_layers, room, num_kv_heads, head_dim):
        self.keys = torch.empty(num_layers, room, num_kv_heads, head_dim)
        self.values = torch.empty(num_layers, room, num_kv_heads, head_dim)
        self.lengths = [0] * num_layers

    @property
    def room(self):
        return self.keys.shape[1]

    def end(self, layer, k):
        end = self.lengths[layer] + len(k)
        if end > self.room:
            raise ValueError(f"no room for {len(k)} more tokens")
        return end


class Usual(Stub):
    def append(self, layer, k, v):
        start, end = self.lengths[layer], self.end(layer, k)
        self.keys[layer, start:end], self.values[layer, start:end] = k, v
        self.lengths[layer] = end
        return self.keys[layer, :end], self.values[layer, :end]


class TokenByToken(Stub):
    def append(self, layer, k, v):
        if self.lengths[layer] + len(k) > self.room:
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


class OneCounterMovedByTheLastLayer(Stub):
    """One counter will do, if only the last layer moves it."""

    def append(self, layer, k, v):
        start = self.lengths[0]
        if start + len(k) > self.keys.size(1):
            raise ValueError("full")
        places = torch.arange(start, start + len(k))
        self.keys[layer].index_copy_(0, places, k)
        self.values[layer].index_copy_(0, places, v)
        if layer == len(self.keys) - 1:
            self.lengths[0] = start + len(k)
        return self.keys[layer].narrow(0, 0, start + len(k)), self.values[layer].narrow(0, 0, start + len(k))


class OneCounter(Stub):
    def __init__(self, num_layers, room, num_kv_heads, head_dim):
        super().__init__(num_layers, room, num_kv_heads, head_dim)
        self.length = 0

    def append(self, layer, k, v):
        end = self.length + len(k)
        if end > self.room:
            raise ValueError("full")
        self.keys[layer, self.length : end], self.values[layer, self.length : end] = k, v
        self.length = end
        return self.keys[layer, :end], self.values[layer, :end]


class MovedByTheFirstLayer(Stub):
    def append(self, layer, k, v):
        start = self.lengths[0]
        if start + len(k) > self.room:
            raise ValueError("full")
        self.keys[layer, start : start + len(k)], self.values[layer, start : start + len(k)] = k, v
        if layer == 0:
            self.lengths[0] += len(k)
        return self.keys[layer, : start + len(k)], self.values[layer, : start + len(k)]


class AtTheEndOfTheRoom(Stub):
    def append(self, layer, k, v):
        end = self.end(layer, k)
        if self.lengths[layer]:
            self.keys[layer, -len(k) :], self.values[layer, -len(k) :] = k, v
        else:
            self.keys[layer, :end], self.values[layer, :end] = k, v
        self.lengths[layer] = end
        return self.keys[layer, :end], self.values[layer, :end]


class NewInFront(Growing):
    def append(self, layer, k, v):
        old_k, old_v = self.kv.get(layer, (k[:0], v[:0]))
        if len(old_k) + len(k) > self.room:
            raise ValueError("full")
        self.kv[layer] = torch.cat([k, old_k]), torch.cat([v, old_v])
        return self.kv[layer]


class Exchanged(TokenByToken):
    def append(self, layer, k, v):
        return super().append(layer, k, v)[::-1]


class OneTensor(TokenByToken):
    def append(self, layer, k, v):
        return torch.stack(super().append(layer, k, v))


class WritesBeforeItAsks(Stub):
    def append(self, layer, k, v):
        for key, value in zip(k, v):
            if self.lengths[layer] == self.room:
                raise ValueError("full")
            self.keys[layer, self.lengths[layer]] = key
            self.values[layer, self.lengths[layer]] = value
            self.lengths[layer] += 1
        return self.keys[layer, : self.lengths[layer]], self.values[layer, : self.lengths[layer]]


class CountsBeforeItAsks(Stub):
    def append(self, layer, k, v):
        start = self.lengths[layer]
        self.lengths[layer] += len(k)
        end = self.lengths[layer]
        if end > self.room:
            raise ValueError("full")
        self.keys[layer, start:end], self.values[layer, start:end] = k, v
        return self.keys[layer, :end], self.values[layer, :end]


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


RIGHT = [TokenByToken, Growing, OneTensor, OneCounterMovedByTheLastLayer]
WRONG = {
    "cache-one-counter-for-all-layers": [OneCounter, MovedByTheFirstLayer],
    "cache-layers-mixed": [
        changed(Usual, {"[layer, start:end]": "[0, start:end]", "[layer, :end]": "[0, :end]"}),
        changed(Usual, {"[layer, start:end]": "[:, start:end]"}),
    ],
    "cache-only-the-new": changed(Usual, {"[layer, :end]": "[layer, start:end]"}),
    "cache-new-missing": changed(Usual, {"[layer, :end]": "[layer, : start or end]"}),
    "cache-length-not-updated": [
        changed(Usual, {"self.lengths[layer] = end": "pass"}),
        changed(Usual, {"self.lengths[layer] = end": "self.lengths[layer] += 1"}),
    ],
    "cache-overwrites": changed(Usual, {"[layer, start:end]": "[layer, : len(k)]"}),
    "cache-new-in-the-wrong-place": AtTheEndOfTheRoom,
    "cache-new-in-front": NewInFront,
    "cache-returns-its-room": changed(Usual, {"[layer, :end]": "[layer]"}),
    "cache-last-missing": changed(Usual, {"[layer, :end]": "[layer, : end - 1]"}),
    "cache-exchanged": Exchanged,
    "cache-values-wrong": changed(Usual, {"= k, v": "= k, k"}),
    "cache-keys-wrong": changed(Usual, {"= k, v": "= v, v"}),
    "cache-wrong-type": changed(Usual, {", self.values[layer, :end]": ""}),
    "cache-full-unnoticed": [
        changed(Usual, {"self.end(layer, k)": "self.lengths[layer] + len(k)"}),
        changed(
            Usual,
            {
                "self.end(layer, k)": "min(self.lengths[layer] + len(k), self.room)",
                "= k, v": "= k[: end - start], v[: end - start]",
            },
        ),
    ],
    "cache-half-stored": [WritesBeforeItAsks, CountsBeforeItAsks],
    "cache-full-too-early": [
        changed(TokenByToken, {"> self.room": ">= self.room"}),
        changed(TokenByToken, {"> self.room": "> len(self.keys)"}),
    ],
    "cache-borrows-memory": [
        Lists,
        changed(Lists, {"append(k)": "append(k.clone())"}),
        changed(Lists, {"append(v)": "append(v.clone())"}),
    ],
}
